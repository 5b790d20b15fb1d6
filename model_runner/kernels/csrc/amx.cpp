// Leave to use the CPU's tile registers, which Linux gives a process that asks for it (Documentation/arch/x86/xstate.rst).

#include "amx.h"

#include "api.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

// Ask once, before anything else is called; returns 0, or why not (an errno).
AXIL_API int32_t axil_prepare() {
#if AXIL_AMX
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) return errno;
#endif
  return 0;
}
