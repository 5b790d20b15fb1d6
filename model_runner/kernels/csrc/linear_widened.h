// Quantised weights widened to float32, exactly as they are stored: into a panel that many tokens share, or in registers
// where tokens are few. Either way a token's sums run over the columns in ascending order, with the same operations.
#pragma once

#include <type_traits>

#include "linear_tiles.h"

constexpr int SLICE = 256;  // columns of a panel, which then fits the first cache
constexpr int FEW = 4;      // tokens up to which widening in registers is faster: their sums fit beside the weights

// A quantised weight is scale * q + least, rounded once; of 8 bits q is stored with 128 added, which `least` takes away.
AXIL_INLINE Floats least_of(const Weight& w, const uint8_t* scales, int lane, Floats scale) {
  return w.format == INT8 ? mul(all(-128.0f), scale) : load_halves(scales + (BLOCK + lane) * 2);
}

// Quantised weights of `count` columns from `first` on, both multiples of 32, as float32 [k][n]: exactly what is stored.
AXIL_INLINE void expand(const Weight& w, const uint8_t* block, int64_t first, int64_t count, float* panel) {
  const int64_t bytes = group_bytes(w);
  for (int64_t k = 0; k < count;) {
    const int64_t column = (first + k) % w.group;
    const uint8_t* group = block + (first + k) / w.group * bytes;
    if (w.format == INT8) {
      const int64_t end = count - k < w.group - column ? count - k : w.group - column;
      const uint8_t* scales = group + BLOCK * static_cast<int64_t>(w.group);
      for (int64_t i = 0; i < end; i += 4) {
        const uint8_t* from = group + (column + i) / 4 * BLOCK * 4;
        for (int line = 0; line < BLOCK * 4; line += 64) ask_ahead(from + AHEAD + line);
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) {
          const Floats scale = load_halves(scales + v * LANES * 2);
          const Ints quad = load_ints(from + v * LANES * 4);
          float* to = panel + (k + i) * BLOCK + v * LANES;
          const Ints low = all_ints(255), zero = all_ints(128);
          store(to, mul(scale, to_floats(sub_ints(and_bits(quad, low), zero))));
          store(to + BLOCK, mul(scale, to_floats(sub_ints(and_bits(shift_right<8>(quad), low), zero))));
          store(to + 2 * BLOCK, mul(scale, to_floats(sub_ints(and_bits(shift_right<16>(quad), low), zero))));
          store(to + 3 * BLOCK, mul(scale, to_floats(sub_ints(shift_right<24>(quad), zero))));
        }
      }
      k += end;
      continue;
    }
    const uint8_t* scales = group + BLOCK * GROUP / 2;
    for (int64_t line = 0; line < bytes; line += 64) ask_ahead(group + AHEAD + line);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) {
      const Floats scale = load_halves(scales + v * LANES * 2);
      const Floats least = load_halves(scales + (BLOCK + v * LANES) * 2);
      for (int i = 0; i < GROUP / 2; i += 4) {
        const Ints both = load_ints(group + (i / 4 * BLOCK + v * LANES) * 4);
        float* to = panel + (k + i) * BLOCK + v * LANES;
        const Ints low = all_ints(15);
        const auto put_column = [&](int at, Ints q) { store(to + at * BLOCK, fma(to_floats(q), scale, least)); };
        put_column(0, and_bits(both, low));
        put_column(16, and_bits(shift_right<4>(both), low));
        put_column(1, and_bits(shift_right<8>(both), low));
        put_column(17, and_bits(shift_right<12>(both), low));
        put_column(2, and_bits(shift_right<16>(both), low));
        put_column(18, and_bits(shift_right<20>(both), low));
        put_column(3, and_bits(shift_right<24>(both), low));
        put_column(19, shift_right<28>(both));
      }
    }
    k += GROUP;
  }
}

// acc[m][p] += w[p] * x[m] for one column's weights.
template <int M, int P>
AXIL_INLINE void add_column(const Floats (&w)[P], const float* x, Floats (&acc)[M][P]) {
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const Floats one = all(x[m]);
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) acc[m][p] = fma(w[p], one, acc[m][p]);
  }
}

// The same for four columns, whose weights are the bytes of every lane.
template <int M, int P>
AXIL_INLINE void add_quads(const Ints (&quads)[P], const Floats (&scale)[P], const Floats (&least)[P], const float* x,
                           Floats (&acc)[M][P]) {
  const auto add_byte = [&](auto number) AXIL_ALWAYS {
    constexpr int BYTE = decltype(number)::value;
    Floats w[P];
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) w[p] = fma(to_floats(byte_of<BYTE>(quads[p])), scale[p], least[p]);
    add_column<M, P>(w, x + BYTE * M, acc);
  };
  add_byte(std::integral_constant<int, 0>());
  add_byte(std::integral_constant<int, 1>());
  add_byte(std::integral_constant<int, 2>());
  add_byte(std::integral_constant<int, 3>());
}

// sums[b][m][n] = x[m] W^T of BLOCKS blocks that lie one behind the other; the sums of `b` lie `apart`.
// One token is best taken through two: the sums of one block alone would wait for each other.
template <int M, int BLOCKS>
AXIL_INLINE void widened_tile(const Weight& w, const uint8_t* block, const float* x, float* sums,
                              int64_t apart) {
  constexpr int P = BLOCKS * VECTORS;
  const int64_t group_size = group_bytes(w), block_size = block_bytes(w);
  const uint8_t* const turn = block + block_size - AHEAD;  // behind it what comes next lies behind the other blocks
  Floats acc[M][P];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) acc[m][p] = zeros();
  for (int64_t k = 0; k < w.num_columns; k += w.group, block += group_size) {
    const auto at = [&](int p, int64_t column) {  // of whole numbers, and of scales behind them
      return block + p / VECTORS * block_size + column + p % VECTORS * LANES * 4;
    };
    const int64_t numbers = w.format == INT8 ? BLOCK * static_cast<int64_t>(w.group) : BLOCK * GROUP / 2;
    const int64_t ahead = AHEAD + (block < turn ? 0 : (BLOCKS - 1) * block_size);
    Floats scale[P], least[P];
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) {
      const uint8_t* const scales = block + p / VECTORS * block_size + numbers;
      scale[p] = load_halves(scales + p % VECTORS * LANES * 2);
      least[p] = least_of(w, scales, p % VECTORS * LANES, scale[p]);
    }
    if (w.format == INT8) {
      for (int64_t i = 0; i < w.group; i += 4) {
        Ints quads[P];
#pragma GCC unroll 6
        for (int p = 0; p < P; p++) {
          quads[p] = load_ints(at(p, i * BLOCK));
          ask_ahead(at(p, i * BLOCK) + ahead);
        }
        add_quads<M, P>(quads, scale, least, x + (k + i) * M, acc);
      }
      continue;
    }
    for (int b = 0; b < BLOCKS; b++)
      for (int64_t line = 0; line < group_size; line += 64) ask_ahead(block + b * block_size + ahead + line);
    const Ints low = all_ints(0x0f0f0f0f);
    for (int i = 0; i < GROUP / 2; i += 4) {
      Ints quads[P];
#pragma GCC unroll 6
      for (int p = 0; p < P; p++) quads[p] = and_bits(load_ints(at(p, i / 4 * BLOCK * 4)), low);
      add_quads<M, P>(quads, scale, least, x + (k + i) * M, acc);
    }
    for (int i = 0; i < GROUP / 2; i += 4) {
      Ints quads[P];
#pragma GCC unroll 6
      for (int p = 0; p < P; p++) quads[p] = and_bits(shift_right<4>(load_ints(at(p, i / 4 * BLOCK * 4))), low);
      add_quads<M, P>(quads, scale, least, x + (k + GROUP / 2 + i) * M, acc);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 6
    for (int p = 0; p < P; p++) store(sums + p / VECTORS * apart + m * BLOCK + p % VECTORS * LANES, acc[m][p]);
}
