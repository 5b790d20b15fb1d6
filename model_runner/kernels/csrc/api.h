// What Python calls: plain C functions of pointers and numbers. Sizes are int64_t, flags int32_t.
#pragma once

#include <cstdint>

#define AXIL_API extern "C" __attribute__((visibility("default")))
