// The CPU's tile registers (Intel AMX): eight matrices of at most 16 rows of 64 bytes, and products of two added to a third.
//
// A product's sums are those of one pair (or quad) of columns after the other, rows apart, so a row's bits depend on nothing
// but that row and the weights. Subnormal numbers count as zero. What registers hold belongs to a thread, and other code of
// the process may use them too: `Tiles` gives them their shapes for as long as it lives.
#pragma once

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simd.h"

constexpr int MOST_ROWS = 16;  // of a register

#if AXIL_AMX

// Leave to use the registers, which Linux gives a process that asks for it (Documentation/arch/x86/xstate.rst): 0, or why not
// (an errno).
inline int32_t ask_for_tiles() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? 0 : errno;
}

// Rows of the registers, and bytes of a row: the layout that `ldtilecfg` reads (Intel SDM, volume 1, 18.2).
struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int T> AXIL_INLINE void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
// Rows lie `apart` bytes from each other.
template <int T> AXIL_INLINE void load_tile(const void* p, int64_t apart) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(apart), "i"(T) : "memory");
}
template <int T> AXIL_INLINE void store_tile(void* p, int64_t apart) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(apart), "i"(T) : "memory");
}
// SUM[m][n] += the sum over k of A[m][k] * B[k / 2][n][k % 2], all bf16; the sums are float32. Of bytes the sum over k of
// A[m][k] (signed) * B[k / 4][n][k % 4] (unsigned), as int32.
template <bool IS_BYTES, int SUM, int A, int B> AXIL_INLINE void add_products() {
  if constexpr (IS_BYTES) asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
  else asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

#endif
