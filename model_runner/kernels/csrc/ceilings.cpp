// What this machine can do at most, to hold measurements of the kernels against: reading memory, multiplying.

#include <vector>

#include "api.h"
#include "simd_bytes.h"
#include "threads.h"

// Read `num_bytes` from memory, by all threads; the result only keeps the reads from being left out.
AXIL_API int64_t axil_read_all(const uint8_t* data, int64_t num_bytes) {
  constexpr int64_t PIECE = 1 << 18;
  static volatile int64_t sink;
  parallel((num_bytes + PIECE - 1) / PIECE, [&](int64_t piece) {
    const int64_t end = (piece + 1) * PIECE < num_bytes ? (piece + 1) * PIECE : num_bytes;
    Ints first = int_zeros(), second = int_zeros();
    for (int64_t i = piece * PIECE; i + 128 <= end; i += 128) {
      _mm_prefetch(reinterpret_cast<const char*>(data + i + 4096), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(data + i + 4160), _MM_HINT_T0);
      for (int64_t at = 0; at < 128; at += 2 * LANES * 4) {
        first = add_ints(first, load_ints(data + i + at));
        second = add_ints(second, load_ints(data + i + at + LANES * 4));
      }
    }
    sink = sum_ints(add_ints(first, second));
  });
  return sink;
}

// `rounds` times 12 independent products and sums of vectors on each thread; returns the floating point operations.
AXIL_API int64_t axil_multiply_all(int64_t rounds) {
  constexpr int CHAINS = 12;
  const int64_t pieces = num_threads();
  std::vector<float> sink(static_cast<size_t>(pieces));
  parallel(pieces, [&](int64_t piece) {
    Floats acc[CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) acc[i] = all(static_cast<float>(piece + i));
    const Floats factor = all(0.999f), step = all(1e-3f);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; i++) {
        acc[i] = fma(acc[i], factor, step);
        asm volatile("" : "+v"(acc[i]));  // each one is computed
      }
    }
    Floats total = zeros();
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) total = add(total, acc[i]);
    sink[static_cast<size_t>(piece)] = sum(total);
  });
  return pieces * rounds * CHAINS * LANES * 2;
}
