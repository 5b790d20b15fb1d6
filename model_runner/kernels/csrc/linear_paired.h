// Weights of 4 and 8 bits multiplied as pairs of bfloat16, where the CPU does that (`vdpbf16ps`): bfloat16 holds whole
// numbers up to 256 exactly, and halves up to 128, so only tokens are rounded. A group's sum is scaled once, whatever the
// number of tokens.
#pragma once

#include <type_traits>

#include "linear_tiles.h"

// Tokens rounded to bf16, the columns of each group in the order in which `Widening` gives their weights.
struct PairTokens {
  const Bf16* acts;     // [tile][group][token of the tile][column of the group]
  const float* totals;  // [tile][group][token of the tile]: the sum of the rounded columns, in front of 8 bits times -1/2
  int64_t num_columns;
  int64_t num_groups;
};

#if AXIL_AVX512

// Which column of its group is at `place`: of 4 bits, bytes of an output are taken two by two, the first with the third.
constexpr int pair_column(int32_t format, int place) {
  return format == INT8 ? place : place / 8 * 4 + place % 2 * 2 + place % 8 / 4 + place % 4 / 2 * 16;
}

// The two bytes of q + 1/2 as bfloat16, for q from 0 to 127.
struct BytesOfHalves {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr BytesOfHalves() {
    for (int q = 0; q < 128; q++) {
      const int twice = 2 * q + 1;
      int exponent = 0;
      while (twice >> (exponent + 1)) exponent++;
      const int bits = (126 + exponent) << 7 | (twice << (7 - exponent) & 127);
      low[q] = static_cast<uint8_t>(bits);
      high[q] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// A vector of a group's bytes as vectors of pairs of bfloat16, with something added to every weight: 128 to 4 bits, which
// are put into its fraction; 1/2 to 8 bits, of which sign and bytes are then found by the bits as they are stored.
template <int FORMAT> struct Widening;

// PAIRS: vectors of pairs that a vector of bytes becomes.
template <int NUM_PAIRS> struct GroupOfPairs {
  static constexpr int PAIRS = NUM_PAIRS, QUADS = GROUP / PAIRS / 2;
  static constexpr int64_t NUMBERS = QUADS * BLOCK * 4;  // bytes, with the scales behind them
};

template <> struct Widening<INT4> : GroupOfPairs<4> {
  static constexpr float ADDED = 128;
  AXIL_INLINE Ints pair(Ints bytes) {
    constexpr int AND_OR = 0xea;
    return _mm512_ternarylogic_epi32(bytes, all_ints(0x000f000f), all_ints(0x43004300), AND_OR);
  }
  void AXIL_ALWAYS split(Ints bytes, Ints (&pairs)[PAIRS]) const {
    pairs[0] = pair(bytes);
    pairs[1] = pair(shift_right<4>(bytes));
    pairs[2] = pair(shift_right<8>(bytes));
    pairs[3] = pair(shift_right<12>(bytes));
  }
};

template <> struct Widening<INT8> : GroupOfPairs<2> {
  static constexpr float ADDED = 0.5f;
  static constexpr BytesOfHalves TABLE{};
  Ints low[2] = {load_ints(TABLE.low), load_ints(TABLE.low + 64)};
  Ints high[2] = {load_ints(TABLE.high), load_ints(TABLE.high + 64)};
  void AXIL_ALWAYS split(Ints bytes, Ints (&pairs)[PAIRS]) const {
    constexpr int OR_AND = 0xf8;
    const Ints lows = _mm512_permutex2var_epi8(low[0], bytes, low[1]);
    const Ints magnitudes = _mm512_permutex2var_epi8(high[0], bytes, high[1]);
    const Ints highs = _mm512_ternarylogic_epi32(magnitudes, bytes, all_ints(static_cast<int>(0x80808080)), OR_AND);
    pairs[0] = _mm512_unpacklo_epi8(lows, highs);
    pairs[1] = _mm512_unpackhi_epi8(lows, highs);
  }
};

// sums[m][n] += x[m][k] * w[n][k]; the sums of `m` lie BLOCK apart. Not inlined, so that registers are given out for
// this loop alone, and `sums` read anew for every group: kept, they would be written to the stack too.
template <int FORMAT, int M>
__attribute__((noinline)) void paired_tile(const Weight& w, const uint8_t* block, const PairTokens& x, int64_t token,
                                           const Asks& asks, float* sums) {
  constexpr int PAIRS = Widening<FORMAT>::PAIRS, QUADS = Widening<FORMAT>::QUADS;
  constexpr int64_t NUMBERS = Widening<FORMAT>::NUMBERS;
  const Widening<FORMAT> widening;
  const int64_t bytes = group_bytes(w);
  const Bf16* acts = x.acts + token * x.num_columns;
  const float* totals = x.totals + token * x.num_groups;
  for (int64_t g = 0; g < x.num_groups; g++, block += bytes, acts += M * GROUP, totals += M) {
    asm volatile("" ::: "memory");
    ask<NUMBERS + BLOCK * (FORMAT == INT4 ? 4 : 2)>(asks, g);
    Floats acc[M][VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) acc[m][v] = FORMAT == INT8 ? all(totals[m]) : zeros();
    const auto add_pairs = [&](const uint8_t* numbers, const Bf16* x, int v) AXIL_ALWAYS {
      Ints pairs[PAIRS];
      widening.split(load_ints(numbers + v * LANES * 4), pairs);
#pragma GCC unroll 4
      for (int p = 0; p < PAIRS; p++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) dot_pairs(acc[m][v], pairs[p], x + m * GROUP + p * 2);
    };
#pragma GCC unroll 8
    for (int quad = 0; quad < QUADS; quad++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) add_pairs(block + quad * BLOCK * 4, acts + quad * PAIRS * 2, v);
    Floats scale[VECTORS], least[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      const uint8_t* const scales = block + NUMBERS + v * LANES * 2;
      scale[v] = load_halves(scales);
      if (FORMAT == INT4) least[v] = fnma(scale[v], all(Widening<FORMAT>::ADDED), load_halves(scales + BLOCK * 2));
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) {
        float* const to = sums + m * BLOCK + v * LANES;
        const Floats so_far = fma(acc[m][v], scale[v], load(to));
        store(to, FORMAT == INT4 ? fma(least[v], all(totals[m]), so_far) : so_far);
      }
  }
}

// Round a token's columns, one of `tile` that lie side by side in every group.
template <int FORMAT, class From>
AXIL_INLINE void pair_up(const From* x, int64_t num_groups, int64_t tile, Bf16* acts, float* totals) {
  alignas(64) static constexpr auto ORDER = [] {
    struct { uint16_t at[GROUP]; } order{};
    for (int place = 0; place < GROUP; place++) order.at[place] = static_cast<uint16_t>(pair_column(FORMAT, place));
    return order;
  }();
  const Ints order = load_ints(ORDER.at);
  for (int64_t g = 0; g < num_groups; g++, x += GROUP, acts += tile * GROUP, totals += tile) {
    alignas(64) Bf16 columns[GROUP];
    store(columns, load(x));
    store(columns + LANES, load(x + LANES));
    *totals = sum(add(load(columns), load(columns + LANES))) * (FORMAT == INT8 ? -Widening<FORMAT>::ADDED : 1.0f);
    store_ints(acts, _mm512_permutexvar_epi16(order, load_ints(columns)));
  }
}

#endif
