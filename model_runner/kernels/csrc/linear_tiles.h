// The innermost loops of a linear layer: a tile of tokens times one block of outputs. Which thread runs them, and what
// becomes of the sums, is linear.cpp's.
#pragma once

#include "linear.h"

// Tokens of a tile: as many as leave registers for a block's weights.
constexpr int TILE = REGISTERS == 16 ? 6 : 8;
constexpr int BYTE_TILE = REGISTERS == 16 ? 4 : 8;
constexpr int64_t AHEAD = 4096;     // bytes between what is read and what is asked of memory

AXIL_INLINE void ask_for(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// sums[m][n] += x[m][k] * panel[k][n] over `count` columns; the sums of `m` lie BLOCK apart.
template <int M, bool IS_FROM_MEMORY>
AXIL_INLINE void float_tile(const float* x, int64_t stride, const float* panel, int64_t count, float* sums) {
  Floats acc[M][VECTORS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = load(sums + m * BLOCK + v * LANES);
  for (int64_t k = 0; k < count; k++) {
    Floats w[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) w[v] = load(panel + k * BLOCK + v * LANES);
    if (IS_FROM_MEMORY)
      for (int line = 0; line < BLOCK * 4; line += 64)
        ask_for(reinterpret_cast<const uint8_t*>(panel + k * BLOCK) + AHEAD + line);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Floats one = all(x[m * stride + k]);
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) acc[m][v] = fma(w[v], one, acc[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) store(sums + m * BLOCK + v * LANES, acc[m][v]);
}

template <int PART, int M>
AXIL_INLINE void add_part(const Act* x, int64_t stride, const Ints (&pairs)[VECTORS], Floats (&acc)[M][VECTORS]) {
  Weights w[VECTORS];
#pragma GCC unroll 3
  for (int v = 0; v < VECTORS; v++) w[v] = part<PART>(pairs[v]);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const ActPart one = all_part<PART>(x + m * stride);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = accumulate(acc[m][v], w[v], one);
  }
}

// The same from bf16 weights as they are stored. Not inlined, so that registers are given out for this loop alone.
template <int M>
__attribute__((noinline)) void pair_tile(const Act* x, int64_t stride, const uint8_t* pairs, int64_t num_pairs,
                                         float* sums) {
  Floats acc[M][VECTORS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = load(sums + m * BLOCK + v * LANES);
  for (int64_t k = 0; k < num_pairs; k++) {
    Ints w[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) w[v] = load_ints(pairs + (k * BLOCK + v * LANES) * 4);
    for (int line = 0; line < BLOCK * 4; line += 64) ask_for(pairs + k * BLOCK * 4 + AHEAD + line);
    add_part<0>(x + 2 * k, stride, w, acc);
    if constexpr (PARTS == 2) add_part<1>(x + 2 * k, stride, w, acc);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) store(sums + m * BLOCK + v * LANES, acc[m][v]);
}

// Tokens rounded to bytes: `q` as `all_quads` reads it, with a scale for each group of columns.
struct ByteTokens {
  const uint8_t* q;
  const float* scales;      // [token][group]
  const int32_t* sums;      // [token][group]: of q
  int64_t num_columns;
  int64_t num_groups;
};

template <int M>
AXIL_INLINE void byte_tile(const Weight& w, const uint8_t* block, const ByteTokens& x, int64_t token, float* sums) {
  const int64_t bytes = group_bytes(w), stride = x.num_columns * QUAD_BYTES / 4;
  for (int64_t g = 0; g < x.num_groups; g++) {
    const uint8_t* group = block + g * bytes;
    const uint8_t* q = x.q + token * stride + g * w.group * QUAD_BYTES / 4;
    Ints acc[M][VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) acc[m][v] = int_zeros();
    for (int64_t k = 0; k < w.group / 4; k++) {
      ByteWeights weights[VECTORS];
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) weights[v] = load_bytes(group + (k * BLOCK + v * LANES) * 4);
      for (int line = 0; line < BLOCK * 4; line += 64) ask_for(group + k * BLOCK * 4 + AHEAD + line);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const ActQuad one = all_quads(q + m * stride + k * QUAD_BYTES);
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) dot_quads(acc[m][v], weights[v], one);
      }
    }
    const uint8_t* scales = group + BLOCK * static_cast<int64_t>(w.group);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      const Floats scale = load_halves(scales + v * LANES * 2);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const int64_t at = (token + m) * x.num_groups + g;
        const Floats whole = to_floats(sub_ints(acc[m][v], all_ints(128 * x.sums[at])));
        float* to = sums + m * BLOCK + v * LANES;
        store(to, fma(whole, mul(scale, all(x.scales[at])), load(to)));
      }
    }
  }
}

template <int M>
AXIL_INLINE void nibble_tile(const Weight& w, const uint8_t* block, const ByteTokens& x, int64_t token, float* sums) {
  const int64_t bytes = group_bytes(w);
  for (int64_t g = 0; g < x.num_groups; g++) {
    const uint8_t* group = block + g * bytes;
    const uint8_t* q = x.q + token * x.num_columns + g * GROUP;
    for (int64_t line = 0; line < bytes; line += 64) ask_for(group + AHEAD + line);
    Ints acc[M][VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) acc[m][v] = int_zeros();
    const Ints low = all_ints(0x0f0f0f0f);
#pragma GCC unroll 4
    for (int k = 0; k < GROUP / 8; k++) {
      Ints both[VECTORS];
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) both[v] = load_ints(group + (k * BLOCK + v * LANES) * 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        Ints weights[VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) weights[v] = and_bits(half ? shift_right<4>(both[v]) : both[v], low);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          int32_t quad;
          memcpy(&quad, q + m * x.num_columns + half * GROUP / 2 + k * 4, 4);
          const Ints one = all_ints(quad);
#pragma GCC unroll 3
          for (int v = 0; v < VECTORS; v++) dot_nibbles(acc[m][v], weights[v], one);
        }
      }
    }
    const uint8_t* scales = group + BLOCK * GROUP / 2;
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      const Floats scale = load_halves(scales + v * LANES * 2);
      const Floats least = load_halves(scales + (BLOCK + v * LANES) * 2);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const int64_t at = (token + m) * x.num_groups + g;
        const float factor = x.scales[at];
        float* to = sums + m * BLOCK + v * LANES;
        const Floats so_far = fma(to_floats(nibble_total(acc[m][v])), mul(scale, all(factor)), load(to));
        store(to, fma(least, all(factor * static_cast<float>(x.sums[at])), so_far));
      }
    }
  }
}
