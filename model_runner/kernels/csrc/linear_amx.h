// A linear layer's products in the CPU's tile registers: up to 32 tokens times a block of outputs. Which thread runs them,
// and what becomes of the sums, is linear.cpp's.
//
// One token takes the same way as many, so its bits are the same. Columns are taken in slices, of which a block's weights fit
// the first cache; sums wait in memory meanwhile, which leaves their bits as they are.
#pragma once

#include "amx.h"
#include "linear_paired.h"

#if AXIL_AMX

static_assert(BLOCK == 32, "two registers of outputs");

constexpr int64_t ROW_BYTES = 64;    // of a register's row
constexpr int64_t SLICE_STEPS = 10;  // rows of 64 bytes of a token that are taken together, at most
constexpr int64_t SLICE_GROUPS = 4;  // the same of groups of few bits, whose weights are widened first
constexpr int64_t SUM_BYTES = BLOCK * 4;
constexpr int64_t STEP_WEIGHTS = MOST_ROWS * SUM_BYTES;  // bytes of a block that a step multiplies

// Tokens as registers read them.
struct TileTokens {
  const uint8_t* rows;  // [tile][step][token of the tile][row_bytes]
  int64_t num_rows;     // tokens of a tile; of the last one some may be missing, and what stands there is not looked at
  int64_t row_bytes;
  int64_t num_steps;
  int64_t tile_bytes() const { return num_steps * num_rows * row_bytes; }
};

// Registers 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 weights.
inline TileShapes shapes_for(const TileTokens& x) {
  TileShapes shapes;
  for (int t = 0; t < 8; t++) {
    shapes.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? x.row_bytes : ROW_BYTES);
    shapes.rows[t] = static_cast<uint8_t>(t < 6 ? x.num_rows : x.row_bytes / 4);
  }
  return shapes;
}

// What a pass over a slice asks of memory: `pace` bytes in each of its steps.
struct TileAsks {
  const uint8_t* from;
  int64_t pace;
  bool are_for_now;  // or for the block behind
};

// sums[m][n] += x[m][k] * w[k][n] over `num_steps` steps of one or two tiles' tokens.
template <bool IS_BYTES, int TILES>
void add_steps(const TileTokens& x, const uint8_t* rows, const uint8_t* weights, int64_t num_steps, const TileAsks& asks,
               bool is_first, float* sums) {
  const int64_t step_bytes = x.num_rows * ROW_BYTES, second = x.tile_bytes(), lower = x.num_rows * BLOCK;
  if (is_first) {
    clear_tile<0>();
    clear_tile<1>();
    if constexpr (TILES == 2) clear_tile<2>(), clear_tile<3>();
  } else {
    load_tile<0>(sums, SUM_BYTES);
    load_tile<1>(sums + LANES, SUM_BYTES);
    if constexpr (TILES == 2) load_tile<2>(sums + lower, SUM_BYTES), load_tile<3>(sums + lower + LANES, SUM_BYTES);
  }
  const uint8_t* asked = asks.from;
  for (int64_t step = 0; step < num_steps; step++, rows += step_bytes, weights += STEP_WEIGHTS) {
    for (int64_t at = 0; at < asks.pace; at += 64) {
      if (asks.are_for_now) ask_for(asked + at);
      else ask_for_later(asked + at);
    }
    asked += asks.pace;
    load_tile<6>(weights, SUM_BYTES);
    load_tile<7>(weights + ROW_BYTES, SUM_BYTES);
    load_tile<4>(rows, ROW_BYTES);
    add_products<IS_BYTES, 0, 4, 6>();
    add_products<IS_BYTES, 1, 4, 7>();
    if constexpr (TILES == 2) {
      load_tile<5>(rows + second, ROW_BYTES);
      add_products<IS_BYTES, 2, 5, 6>();
      add_products<IS_BYTES, 3, 5, 7>();
    }
  }
  store_tile<0>(sums, SUM_BYTES);
  store_tile<1>(sums + LANES, SUM_BYTES);
  if constexpr (TILES == 2) {
    store_tile<2>(sums + lower, SUM_BYTES);
    store_tile<3>(sums + lower + LANES, SUM_BYTES);
  }
}

// The sums of `num_tiles` tiles' tokens, for weights that are multiplied as they are stored.
template <bool IS_BYTES>
void sum_steps(const TileTokens& x, const uint8_t* rows, int64_t num_tiles, const uint8_t* block, const uint8_t* next,
               float* sums) {
  const int64_t num_passes = (num_tiles + 1) / 2, num_slices = (x.num_steps + SLICE_STEPS - 1) / SLICE_STEPS;
  for (int64_t slice = 0; slice < num_slices; slice++) {
    const int64_t step = x.num_steps * slice / num_slices, count = x.num_steps * (slice + 1) / num_slices - step;
    const uint8_t* const weights = block + step * STEP_WEIGHTS;
    // The first pass asks for what it is about to read, the others together for the same slice of the next block.
    const int64_t share = num_passes > 1 ? (STEP_WEIGHTS / (num_passes - 1) + 63) / 64 * 64 : 0;
    for (int64_t pass = 0; pass < num_passes; pass++) {
      const uint8_t* const own = rows + 2 * pass * x.tile_bytes() + step * x.num_rows * ROW_BYTES;
      float* const to = sums + 2 * pass * x.num_rows * BLOCK;
      const TileAsks asks = pass == 0 ? TileAsks{weights + AHEAD, STEP_WEIGHTS, true}
                                      : TileAsks{next + step * STEP_WEIGHTS + (pass - 1) * share * count, share, false};
      if (2 * pass + 1 < num_tiles) add_steps<IS_BYTES, 2>(x, own, weights, count, asks, step == 0, to);
      else add_steps<IS_BYTES, 1>(x, own, weights, count, asks, step == 0, to);
    }
  }
}

// From products of bytes, in place, to sums.
AXIL_INLINE void scale_bytes(const int32_t* zeros, const float* factors, const float* scales, int64_t count, float* sums) {
  for (int64_t m = 0; m < count; m++, sums += BLOCK)
    for (int v = 0; v < BLOCK; v += LANES) {
      const Ints whole = add_ints(load_ints(sums + v), all_ints(zeros[m]));
      store(sums + v, scaled_bytes(whole, load(scales + v), all(factors[m])));
    }
}

// Groups of few bits: how their weights become what registers multiply, and a group's products sums.
template <bool IS_BYTES, int FORMAT> struct Groups;

template <int FORMAT> struct Groups<false, FORMAT> {
  static constexpr int PAIRS = Widening<FORMAT>::PAIRS, QUADS = Widening<FORMAT>::QUADS;
  static constexpr int64_t NUMBERS = Widening<FORMAT>::NUMBERS, PANEL = GROUP * BLOCK * 2;
  Widening<FORMAT> widening;
  void AXIL_ALWAYS widen(const uint8_t* group, uint8_t* panel) const {
#pragma GCC unroll 8
    for (int quad = 0; quad < QUADS; quad++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        Ints pairs[PAIRS];
        widening.split(load_ints(group + (quad * BLOCK + v * LANES) * 4), pairs);
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) store_ints(panel + (quad * PAIRS + p) * SUM_BYTES + v * ROW_BYTES, pairs[p]);
      }
  }
};

template <> struct Groups<true, INT4> {
  static constexpr int64_t NUMBERS = GROUP / 2 * BLOCK, PANEL = GROUP * BLOCK;
  void AXIL_ALWAYS widen(const uint8_t* group, uint8_t* panel) const {
    const Ints low = all_ints(0x0f0f0f0f);
#pragma GCC unroll 4
    for (int k = 0; k < GROUP / 8; k++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const Ints both = load_ints(group + (k * BLOCK + v * LANES) * 4);
        store_ints(panel + k * SUM_BYTES + v * ROW_BYTES, and_bits(both, low));
        store_ints(panel + (GROUP / 8 + k) * SUM_BYTES + v * ROW_BYTES, and_bits(shift_right<4>(both), low));
      }
  }
};

// A group's products of one tile, by way of registers `SUM` and the next, into `products` [token][BLOCK].
template <bool IS_BYTES, int SUM>
AXIL_INLINE void multiply_group(const TileTokens& x, const uint8_t* rows, const uint8_t* panel, float* products) {
  clear_tile<SUM>();
  clear_tile<SUM + 1>();
  load_tile<6>(panel, SUM_BYTES);
  load_tile<7>(panel + ROW_BYTES, SUM_BYTES);
  load_tile<4 + SUM / 2>(rows, x.row_bytes);
  add_products<IS_BYTES, SUM, 4 + SUM / 2, 6>();
  add_products<IS_BYTES, SUM + 1, 4 + SUM / 2, 7>();
  store_tile<SUM>(products, SUM_BYTES);
  store_tile<SUM + 1>(products + LANES, SUM_BYTES);
}

// A slice's groups: where their scales lie, and what belongs to the tokens, as `ByteTokens` and `PairTokens` have it.
struct Slice {
  const uint8_t* scales;
  int64_t bytes;  // from one group's scales to the next one's
  int64_t count;
  const float *factors, *totals;  // [group][token of the tile]
  int64_t num_rows;
};

// sums[m][n] += the products [group][token][BLOCK] of M tokens from `first` on, by their scales. Not inlined, so that registers are
// given out for this loop alone.
template <bool IS_BYTES, int FORMAT, int M>
__attribute__((noinline)) void add_groups(const Slice& slice, int64_t first, const float* products, float* sums) {
  Floats acc[M][VECTORS];
  sums += first * BLOCK;
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) acc[m][v] = load(sums + m * BLOCK + v * LANES);
  for (int64_t g = 0; g < slice.count; g++) {
    const uint8_t* const scales = slice.scales + g * slice.bytes;
    const float* const product = products + (g * MOST_ROWS + first) * BLOCK;
    const int64_t token = g * slice.num_rows + first;
    const float *const factors = slice.factors + token, *const totals = slice.totals + token;
    Floats scale[VECTORS], least[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      scale[v] = load_halves(scales + v * LANES * 2);
      least[v] = FORMAT == INT4 ? load_halves(scales + (BLOCK + v * LANES) * 2) : scale[v];
      if (FORMAT == INT4 && !IS_BYTES) least[v] = fnma(scale[v], all(Widening<INT4>::ADDED), least[v]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const float* const from = product + m * BLOCK + v * LANES;
        const Floats total = all(totals[m]);
        if constexpr (IS_BYTES)
          acc[m][v] = add_nibbles(acc[m][v], load_ints(from), scale[v], all(factors[m]), least[v], total);
        else acc[m][v] = fma(least[v], total, fma(load(from), scale[v], acc[m][v]));
      }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) store(sums + m * BLOCK + v * LANES, acc[m][v]);
}

// The sums of `num_tiles` tiles' tokens for weights of few bits in groups, `sums` being zeros before. `factors` and `totals`
// are those of the first token.
template <bool IS_BYTES, int FORMAT>
void sum_groups(const Weight& w, const TileTokens& x, const uint8_t* rows, const float* factors, const float* totals,
                int64_t num_tiles, const uint8_t* block, uint8_t* panel, float* sums) {
  using G = Groups<IS_BYTES, FORMAT>;
  const G groups;
  const int64_t bytes = group_bytes(w), row_bytes = x.num_rows * x.row_bytes;
  alignas(64) float products[SLICE_GROUPS * MOST_ROWS * BLOCK];
  for (int64_t first = 0; first < x.num_steps; first += SLICE_GROUPS, block += SLICE_GROUPS * bytes) {
    const int64_t count = smaller(SLICE_GROUPS, x.num_steps - first);
    for (int64_t g = 0; g < count; g++) {
      for (int64_t line = 0; line < bytes; line += 64) ask_ahead(block + g * bytes + AHEAD + line);
      groups.widen(block + g * bytes, panel + g * G::PANEL);
    }
    for (int64_t t = 0; t < num_tiles; t++) {
      const uint8_t* const own = rows + t * x.tile_bytes() + first * row_bytes;
      const int64_t at = (t * x.num_steps + first) * x.num_rows;
      for (int64_t g = 0; g < count; g++) {
        float* const to = products + g * MOST_ROWS * BLOCK;
        if (g % 2 == 0) multiply_group<IS_BYTES, 0>(x, own + g * row_bytes, panel + g * G::PANEL, to);
        else multiply_group<IS_BYTES, 2>(x, own + g * row_bytes, panel + g * G::PANEL, to);
      }
      const Slice slice{block + G::NUMBERS, bytes, count, factors + at, totals + at, x.num_rows};
      const auto add = [&](auto size, const Place& part) {
        add_groups<IS_BYTES, FORMAT, decltype(size)::value>(slice, part.first, products, sums + t * x.num_rows * BLOCK);
      };
      if (x.num_rows < MOST_ROWS) {
        tiles<TILE>(x.num_rows, add);
        continue;
      }
      for (int64_t i = 0; i < 2; i++) add(std::integral_constant<int, MOST_ROWS / 2>(), Place{i, 2, i * MOST_ROWS / 2});
    }
  }
}

#endif
