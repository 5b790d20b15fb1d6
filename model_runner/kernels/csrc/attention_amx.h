// Attention's products in the CPU's tile registers: up to 16 queries meet the keys, and their weights the values, of one group
// of positions, which the pool holds as registers read them. What is seen and how weights come of scores is attention.cpp's.
#pragma once

#include <type_traits>

#include "amx.h"
#include "attention_tiles.h"

#if AXIL_AMX

constexpr int64_t LINE_BYTES = 64;  // a row of keys or values
constexpr int64_t BLOCK_PAIRS = BLOCK / 2;

// Bytes of a query that one product takes: whole rows where the head's dimension is a multiple of them.
inline int64_t step_bytes(int64_t dim) { return dim % 32 == 0 ? 64 : 32; }

// Registers 0 to 3 hold sums, 4 and 5 queries and keys, 6 and 7 weights and values.
inline TileShapes shapes_for(int64_t rows, int64_t dim) {
  TileShapes shapes;
  for (int t = 0; t < 8; t++) {
    shapes.row_bytes[t] = LINE_BYTES;
    shapes.rows[t] = static_cast<uint8_t>(rows);
  }
  shapes.row_bytes[4] = static_cast<uint16_t>(step_bytes(dim));
  shapes.rows[5] = static_cast<uint8_t>(step_bytes(dim) / 4);
  shapes.row_bytes[6] = BLOCK * 2;
  shapes.rows[7] = BLOCK_PAIRS;
  return shapes;
}

// Call `body(number as a constant)` for 0 to COUNT - 1.
template <int COUNT, class Body>
AXIL_INLINE void each(const Body& body) {
  if constexpr (COUNT > 1) each<COUNT - 1>(body);
  body(std::integral_constant<int, COUNT - 1>());
}

// scores[r][position] of one register's queries `q` [r][dim] and the keys of BLOCKS blocks. With ASKS it is asked for those of
// `later`.
template <int BLOCKS, bool ASKS>
void score_blocks(const Bf16* q, int64_t dim, const uint32_t* const* blocks, const uint32_t* const* later, float* scores) {
  const int64_t step = step_bytes(dim) / 2, step_words = step / 2 * BLOCK;  // columns of a query; words of a block's keys
  each<BLOCKS>([](auto b) AXIL_ALWAYS { clear_tile<decltype(b)::value>(); });
  for (int64_t d = 0, word = 0; d < dim; d += step, word += step_words) {
    load_tile<4>(q + d, dim * 2);
    each<BLOCKS>([&](auto b) AXIL_ALWAYS {
      constexpr int B = decltype(b)::value;
      if constexpr (ASKS)
        for (int64_t at = 0; at < step_words; at += LINE_WORDS) ask_for_later(later[B] + word + at);
      load_tile<5>(blocks[B] + word, LINE_BYTES);
      add_products<false, B, 4, 5>();
    });
  }
  each<BLOCKS>([&](auto b) AXIL_ALWAYS {
    store_tile<decltype(b)::value>(scores + decltype(b)::value * BLOCK, GROUP * sizeof(float));
  });
}

template <bool ASKS>
void score_in_registers(const Bf16* q, int64_t dim, const uint32_t* const* blocks, const uint32_t* const* later,
                        int num_blocks, float* scores) {
  switch (num_blocks) {
    case 1: return score_blocks<1, ASKS>(q, dim, blocks, later, scores);
    case 2: return score_blocks<2, ASKS>(q, dim, blocks, later, scores);
    case 3: return score_blocks<3, ASKS>(q, dim, blocks, later, scores);
    default: return score_blocks<GROUP_BLOCKS, ASKS>(q, dim, blocks, later, scores);
  }
}

// sums[r][d] += weights[r][position] * values[position][d] for VECTORS vectors of dimensions from `first` on.
template <int VECTORS, bool ASKS>
void weigh_dims_in_registers(const Bf16* weights, const uint32_t* const* values, const uint32_t* const* later,
                             int num_blocks, int64_t first, float* sums, int64_t dim) {
  const int64_t apart = dim * static_cast<int64_t>(sizeof(float));
  each<VECTORS>([&](auto v) AXIL_ALWAYS {
    load_tile<decltype(v)::value>(sums + first + decltype(v)::value * LANES, apart);
  });
  for (int b = 0; b < num_blocks; b++) {
    if constexpr (ASKS)
      for (int64_t pair = 0; pair < BLOCK_PAIRS; pair++)
        for (int v = 0; v < VECTORS; v++) ask_for_later(later[b] + pair * dim + first + v * LANES);
    load_tile<6>(weights + b * BLOCK, GROUP * sizeof(Bf16));
    each<VECTORS>([&](auto v) AXIL_ALWAYS {
      load_tile<7>(values[b] + first + decltype(v)::value * LANES, apart);
      add_products<false, decltype(v)::value, 6, 7>();
    });
  }
  each<VECTORS>([&](auto v) AXIL_ALWAYS {
    store_tile<decltype(v)::value>(sums + first + decltype(v)::value * LANES, apart);
  });
}

template <bool ASKS>
void weigh_in_registers(const Bf16* weights, const uint32_t* const* values, const uint32_t* const* later, int num_blocks,
                        float* sums, int64_t dim) {
  int64_t d = 0;
  for (; d + 4 * LANES <= dim; d += 4 * LANES)
    weigh_dims_in_registers<4, ASKS>(weights, values, later, num_blocks, d, sums, dim);
  for (; d + 2 * LANES <= dim; d += 2 * LANES)
    weigh_dims_in_registers<2, ASKS>(weights, values, later, num_blocks, d, sums, dim);
  for (; d < dim; d += LANES) weigh_dims_in_registers<1, ASKS>(weights, values, later, num_blocks, d, sums, dim);
}

#endif
