#include "amx.h"

#include "api.h"

// To be called once, before all else; returns 0, or why this process may not use what it was compiled for (an errno).
AXIL_API int32_t axil_prepare() {
#if AXIL_AMX
  return ask_for_tiles();
#else
  return 0;
#endif
}
