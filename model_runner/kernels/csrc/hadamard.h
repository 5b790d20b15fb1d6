// Columns rotated by Hadamard matrices, weights and tokens alike, which leaves their products as they are: what a few large
// columns had is spread over many, and one scale for a whole row costs little. (QuaRot, Ashkboos et al. 2024, whose matrices
// are as wide as the layer; here it is 64 or 32 columns at a time.)
#pragma once

#include "simd.h"

inline int64_t rotated_together(int64_t num_columns) { return num_columns % 64 == 0 ? 64 : 32; }

// Lane i of vectors is -1 where i has the bit N.
template <int N>
struct Signs {
  alignas(64) float of[LANES] = {};
  constexpr Signs() {
    for (int i = 0; i < LANES; i++) of[i] = i & N ? -1.0f : 1.0f;
  }
};

template <int N>
AXIL_INLINE Floats butterfly(Floats v) {
  static constexpr Signs<N> SIGNS;
  return fma(v, load(SIGNS.of), crossed<N>(v));
}

// The matrix of 1 and -1 times COUNT columns from `x`. The matrix times itself is COUNT times the identity.
template <int COUNT, class From>
AXIL_INLINE void rotate_some(const From* x, float* out) {
  constexpr int N = COUNT / LANES;
  Floats v[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) {
    v[i] = butterfly<2>(butterfly<1>(load(x + i * LANES)));
    v[i] = butterfly<4>(v[i]);
    if constexpr (LANES == 16) v[i] = butterfly<8>(v[i]);
  }
#pragma GCC unroll 4
  for (int apart = 1; apart < N; apart *= 2)
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
      if (!(i & apart)) {
        const Floats a = v[i], b = v[i + apart];
        v[i] = add(a, b);
        v[i + apart] = sub(a, b);
      }
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) store(out + i * LANES, v[i]);
}

// All columns of a row; `out` may be `x`.
template <class From>
AXIL_INLINE void rotate_columns(const From* x, int64_t num_columns, float* out) {
  if (rotated_together(num_columns) == 64)
    for (int64_t k = 0; k < num_columns; k += 64) rotate_some<64>(x + k, out + k);
  else
    for (int64_t k = 0; k < num_columns; k += 32) rotate_some<32>(x + k, out + k);
}
