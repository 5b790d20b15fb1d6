// The innermost loops of a linear layer: a tile of tokens times one block of outputs. Which thread runs them, and what
// becomes of the sums, is linear.cpp's.
#pragma once

#include <type_traits>

#include "linear.h"

// Tokens of a tile: as many as leave registers for a block's weights.
constexpr int TILE = REGISTERS == 16 ? 6 : 8;
constexpr int BYTE_TILE = REGISTERS == 16 ? 6 : 8;
constexpr int64_t AHEAD = AXIL_AVX512 ? 6144 : 4096;  // bytes between what is read and what is asked of memory

// Ask for a line of what is read in a stream. Where it is computed faster than memory gives, into the second cache: what is
// on its way into the first one takes a place that loads need.
AXIL_INLINE void ask_ahead(const void* p) {
  if (AXIL_AVX512) ask_for_later(p);
  else ask_for(p);
}

AXIL_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Tokens [first, first + size) of those that are taken together.
struct Tile {
  int64_t first, size;
};

// One of the `num_tiles` that `count` tokens are cut into, of sizes as equal as can be: a small last one costs nearly as
// much as a full one.
AXIL_INLINE Tile tile_at(int64_t index, int64_t num_tiles, int64_t count) {
  if (num_tiles == 1) return {0, count};  // without dividing
  const int64_t size = count / num_tiles, larger = count % num_tiles;
  return {index * size + smaller(index, larger), size + (index < larger)};
}

// One of `num_tiles`, and its first token.
struct Place {
  int64_t number, num_tiles, first;
};

// Call `body(size, place)` for every tile of at most MOST tokens, its size a constant.
template <int MOST, class Body>
AXIL_INLINE void tiles(int64_t count, const Body& body) {
  const int64_t num_tiles = (count + MOST - 1) / MOST;
  for (int64_t i = 0; i < num_tiles; i++) {
    const Tile tile = tile_at(i, num_tiles, count);
    const Place place{i, num_tiles, tile.first};
    switch (tile.size) {
      case 1: body(std::integral_constant<int, 1>(), place); break;
      case 2: body(std::integral_constant<int, 2>(), place); break;
      case 3: body(std::integral_constant<int, 3>(), place); break;
      case 4: body(std::integral_constant<int, 4>(), place); break;
      case 5: if constexpr (MOST > 4) body(std::integral_constant<int, 5>(), place); break;
      case 6: if constexpr (MOST > 4) body(std::integral_constant<int, 6>(), place); break;
      case 7: if constexpr (MOST > 6) body(std::integral_constant<int, 7>(), place); break;
      default: if constexpr (MOST > 6) body(std::integral_constant<int, 8>(), place); break;
    }
  }
}

// What a tile asks of memory while it computes: `pace` bytes in each of its steps. It always asks for as many lines as it
// reads itself, which is cheaper than to count.
struct Asks {
  const uint8_t* from;
  int64_t pace;
};
template <int BYTES_READ>
AXIL_INLINE void ask(const Asks& asks, int64_t step) {
  const uint8_t* const from = asks.from + step * asks.pace;
#pragma GCC unroll 16
  for (int line = 0; line < BYTES_READ; line += 64) ask_ahead(from + line);
}

// sums[m][n] += x[m][k] * panel[k][n] over `count` columns; the sums of `m` lie BLOCK apart.
template <int M, bool IS_FROM_MEMORY>
AXIL_INLINE void float_tile(const float* x, const float* panel, int64_t count, float* sums) {
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
        ask_ahead(reinterpret_cast<const uint8_t*>(panel + k * BLOCK) + AHEAD + line);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Floats one = all(x[k * M + m]);
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
AXIL_INLINE void add_part(const Act* x, const Ints (&pairs)[VECTORS], Floats (&acc)[M][VECTORS]) {
  Weights w[VECTORS];
#pragma GCC unroll 3
  for (int v = 0; v < VECTORS; v++) w[v] = part<PART>(pairs[v]);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const ActPart one = all_part<PART>(x + 2 * m);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = accumulate(acc[m][v], w[v], one);
  }
}

// The same from bf16 weights as they are stored. Not inlined, so that registers are given out for this loop alone.
template <int M>
__attribute__((noinline)) void pair_tile(const Act* x, const uint8_t* pairs, int64_t num_pairs,
                                         const Asks& asks, float* sums) {
  Floats acc[M][VECTORS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = load(sums + m * BLOCK + v * LANES);
  for (int64_t k = 0; k < num_pairs; k++) {
    Ints w[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) w[v] = load_ints(pairs + (k * BLOCK + v * LANES) * 4);
    ask<BLOCK * 4>(asks, k);
    add_part<0>(x + 2 * k * M, w, acc);
    if constexpr (PARTS == 2) add_part<1>(x + 2 * k * M, w, acc);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) store(sums + m * BLOCK + v * LANES, acc[m][v]);
}

// Tokens rounded to bytes, in the order in which a tile reads them, with a scale for each group of columns that have one.
struct ByteTokens {
  const uint8_t* q;       // [tile][column / 4][token of the tile][4], QUAD_BYTES each for 8 bits, 4 for nibbles
  const float* scales;    // [tile][group][token of the tile]
  const float* totals;    // the same: scale * the sum of q, with which the least of 4 bits is multiplied
  const int32_t* zeros;   // the same: -128 * the sum of q, for the 128 that is added to 8 bits
  int64_t num_columns;
  int64_t num_groups;
};

// From whole numbers to sums, the same for all that multiply bytes: of 8 bits, and of a group of 4.
AXIL_INLINE Floats scaled_bytes(Ints whole, Floats scale, Floats factor) { return mul(to_floats(whole), mul(scale, factor)); }
AXIL_INLINE Floats add_nibbles(Floats so_far, Ints whole, Floats scale, Floats factor, Floats least, Floats total) {
  return fma(least, total, fma(to_floats(whole), mul(scale, factor), so_far));
}

// The sums of rotated columns. Not inlined, so that registers are given out for this loop alone.
template <int M>
__attribute__((noinline)) void byte_tile(const uint8_t* block, const float* scales, const ByteTokens& x, int64_t token,
                                         const Asks& asks, float* sums) {
  const int64_t num_quads = x.num_columns / 4;
  const uint8_t* const q = x.q + token * num_quads * QUAD_BYTES;
  Ints acc[M][VECTORS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) acc[m][v] = all_ints(x.zeros[token + m]);
  for (int64_t k = 0; k < num_quads; k++) {
    ByteWeights weights[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) weights[v] = load_bytes(block + (k * BLOCK + v * LANES) * 4);
    ask<BLOCK * 4>(asks, k);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const ActQuad one = all_quads(q + (k * M + m) * QUAD_BYTES);
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) dot_quads(acc[m][v], weights[v], one);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const Floats factor = all(x.scales[token + m]);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++)
      store(sums + m * BLOCK + v * LANES, scaled_bytes(acc[m][v], load(scales + v * LANES), factor));
  }
}

// Not inlined for the same reason, and reads `sums` anew for every group: kept, they would be written to the stack too.
template <int M>
__attribute__((noinline)) void nibble_tile(const Weight& w, const uint8_t* block, const ByteTokens& x, int64_t token,
                                           const Asks& asks, float* sums) {
  const int64_t bytes = group_bytes(w);
  const uint8_t* q = x.q + token * x.num_columns;
  const Ints low = all_ints(0x0f0f0f0f);
  for (int64_t g = 0; g < x.num_groups; g++, block += bytes, q += GROUP * M) {
    asm volatile("" ::: "memory");
    const int64_t at = token * x.num_groups + g * M;
    ask<BLOCK * (GROUP / 2 + 4)>(asks, g);
    Ints acc[M][VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) acc[m][v] = int_zeros();
#pragma GCC unroll 4
    for (int k = 0; k < GROUP / 8; k++) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        Ints weights[VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) {
          const Ints both = load_ints(block + (k * BLOCK + v * LANES) * 4);
          weights[v] = and_bits(half ? shift_right<4>(both) : both, low);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          int32_t quad;
          memcpy(&quad, q + (half * GROUP / 2 + k * 4) * M + m * 4, 4);
          const Ints one = all_ints(quad);
#pragma GCC unroll 3
          for (int v = 0; v < VECTORS; v++) dot_nibbles(acc[m][v], weights[v], one);
        }
      }
    }
    Floats scale[VECTORS], least[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      scale[v] = load_halves(block + BLOCK * GROUP / 2 + v * LANES * 2);
      least[v] = load_halves(block + BLOCK * GROUP / 2 + (BLOCK + v * LANES) * 2);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Floats factor = all(x.scales[at + m]), total = all(x.totals[at + m]);
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) {
        float* to = sums + m * BLOCK + v * LANES;
        store(to, add_nibbles(load(to), nibble_total(acc[m][v]), scale[v], factor, least[v], total));
      }
    }
  }
}
