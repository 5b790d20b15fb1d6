// Weights of 4 and 8 bits multiplied as pairs of bfloat16, where the CPU does that (`vdpbf16ps`): bfloat16 holds whole
// numbers up to 256 exactly, so only tokens are rounded. A group's sum is scaled once, whatever the number of tokens.
#pragma once

#include <type_traits>

#include "linear_tiles.h"

// Tokens rounded to bf16, the columns of each group in the order in which `weight_pairs` gives their weights.
struct PairTokens {
  const Bf16* acts;     // [tile][group][token of the tile][column of the group]
  const float* totals;  // [tile][group][token of the tile]: the sum of the rounded columns
  int64_t num_columns;
  int64_t num_groups;
};

#if AXIL_AVX512

// Which column of its group is at `place`: bytes of a lane are taken two by two, the first with the third.
constexpr int pair_column(int32_t format, int place) {
  if (format == INT8) return place / 4 * 4 + place % 2 * 2 + place % 4 / 2;
  return place / 8 * 4 + place % 2 * 2 + place % 8 / 4 + place % 4 / 2 * 16;
}

// The weights' pairs in a vector of the group's bytes. 4 bits are put into 128's fraction, so 128 is to be taken away.
template <int FORMAT, int PAIR> AXIL_INLINE Ints weight_pairs(Ints bytes) {
  if constexpr (FORMAT == INT4) {
    constexpr int AND_OR = 0xea;
    return _mm512_ternarylogic_epi32(shift_right<4 * PAIR>(bytes), all_ints(0x000f000f), all_ints(0x43004300), AND_OR);
  } else {
    const Ints first = and_bits(shift_right<8 * PAIR>(bytes), all_ints(255));
    const Ints second = and_bits(shift_right<8 * PAIR + 16>(bytes), all_ints(255));
    return _mm512_or_si512(shift_right<16>(as_ints(to_floats(first))), as_ints(to_floats(second)));
  }
}

// sums[m][n] += x[m][k] * w[n][k]; the sums of `m` lie BLOCK apart. Not inlined, so that registers are given out for
// this loop alone, and `sums` read anew for every group: kept, they would be written to the stack too.
template <int FORMAT, int M>
__attribute__((noinline)) void paired_tile(const Weight& w, const uint8_t* block, const PairTokens& x, int64_t token,
                                           const Asks& asks, float* sums) {
  constexpr int PAIRS = FORMAT == INT4 ? 4 : 2;  // of a vector of bytes
  constexpr int QUADS = GROUP / PAIRS / 2;
  constexpr int64_t NUMBERS = QUADS * BLOCK * 4;  // bytes, with the scales behind them
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
      for (int v = 0; v < VECTORS; v++) acc[m][v] = zeros();
    const auto add_pair = [&](int quad, auto number) AXIL_ALWAYS {
      constexpr int PAIR = decltype(number)::value;
      Ints weights[VECTORS];
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++)
        weights[v] = weight_pairs<FORMAT, PAIR>(load_ints(block + (quad * BLOCK + v * LANES) * 4));
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const ActPart one = all_part<0>(acts + m * GROUP + (quad * PAIRS + PAIR) * 2);
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) acc[m][v] = accumulate(acc[m][v], weights[v], one);
      }
    };
#pragma GCC unroll 8
    for (int quad = 0; quad < QUADS; quad++) {
      add_pair(quad, std::integral_constant<int, 0>());
      add_pair(quad, std::integral_constant<int, 1>());
      if constexpr (PAIRS == 4) {
        add_pair(quad, std::integral_constant<int, 2>());
        add_pair(quad, std::integral_constant<int, 3>());
      }
    }
    Floats scale[VECTORS], least[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      scale[v] = load_halves(block + NUMBERS + v * LANES * 2);
      const Floats stored = FORMAT == INT4 ? load_halves(block + NUMBERS + (BLOCK + v * LANES) * 2) : zeros();
      least[v] = fnma(scale[v], all(128.0f), stored);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Floats total = all(totals[m]);
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; v++) {
        float* const to = sums + m * BLOCK + v * LANES;
        store(to, fma(least[v], total, fma(acc[m][v], scale[v], load(to))));
      }
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
    *totals = sum(add(load(columns), load(columns + LANES)));
    store_ints(acts, _mm512_permutexvar_epi16(order, load_ints(columns)));
  }
}

#endif
