// The innermost loops of attention: a few queries meet the keys, and their weights the values, of one group of positions.
// What is seen and how weights come of scores is attention.cpp's.
#pragma once

#include <type_traits>

#include "kv_layout.h"

constexpr int GROUP = 64;  // positions whose scores are looked at together
constexpr int VECTORS = BLOCK / LANES;  // of one block's positions
constexpr int GROUP_BLOCKS = GROUP / BLOCK;
constexpr int ROWS = REGISTERS == 32 ? 6 : 3;  // queries at a time: 4 vectors each, and the rest for operands

// What is needed one group later is asked of memory while this one is computed: pages lie anywhere.
AXIL_INLINE void ask_for(const uint32_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
constexpr int LINE_WORDS = 16;

// With ASKS it is asked for the blocks at the same places of `later`.
template <class Stored, int R, int V, bool ASKS>
AXIL_INLINE void score_block_rows(const typename KvLayout<Stored>::Query* q, int64_t dim,
                                  const uint32_t* const* blocks, const uint32_t* const* later, float* scores) {
  using L = KvLayout<Stored>;
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sums[r][v] = zeros();
  for (int64_t d = 0; d < dim / L::STEP; d++) {
    const auto* x = q + d * L::STEP;
    if constexpr (ASKS)
      for (int b = 0; b < V / VECTORS; b++) ask_for(later[b] + d * BLOCK);
    const auto add_part = [&](auto number) AXIL_ALWAYS {
      constexpr int PART = decltype(number)::value;
      decltype(L::template query<PART>(x)) parts[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) parts[r] = L::template query<PART>(x + r * dim);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        const auto w = L::template weights<PART>(blocks[v / VECTORS] + d * BLOCK + v % VECTORS * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[r][v] = L::product(sums[r][v], w, parts[r]);
      }
    };
    add_part(std::integral_constant<int, 0>());
    if constexpr (L::NUM_PARTS == 2) add_part(std::integral_constant<int, 1>());
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(scores + r * GROUP + v * LANES, sums[r][v]);
}

template <class Stored, int R, bool ASKS>
AXIL_INLINE void score_rows(const typename KvLayout<Stored>::Query* q, int64_t dim, const uint32_t* const* blocks,
                            const uint32_t* const* later, int num_blocks, float* scores) {
  constexpr int AT_ONCE = 4 / VECTORS;
  int b = 0;
  for (; b + AT_ONCE <= num_blocks; b += AT_ONCE)
    score_block_rows<Stored, R, 4, ASKS>(q, dim, blocks + b, later + b, scores + b * BLOCK);
  for (; b < num_blocks; b++)
    score_block_rows<Stored, R, VECTORS, ASKS>(q, dim, blocks + b, later + b, scores + b * BLOCK);
}

template <class Stored, int R, int V, bool ASKS>
AXIL_INLINE void weigh_dims(const typename KvLayout<Stored>::Query* weights, const uint32_t* const* words,
                            const uint32_t* const* later, int num_words, int64_t first_dim, float* sums_of_rows,
                            int64_t dim) {
  using L = KvLayout<Stored>;
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sums[r][v] = load(sums_of_rows + r * dim + first_dim + v * LANES);
  for (int t = 0; t < num_words; t++) {
    const uint32_t* values = words[t] + first_dim;
    const auto* x = weights + t * L::STEP;
    if constexpr (ASKS)
      for (int at = 0; at < V * LANES; at += LINE_WORDS) ask_for(later[t] + first_dim + at);
    const auto add_part = [&](auto number) AXIL_ALWAYS {
      constexpr int PART = decltype(number)::value;
      decltype(L::template query<PART>(x)) parts[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) parts[r] = L::template query<PART>(x + r * GROUP);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        const auto w = L::template weights<PART>(values + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[r][v] = L::product(sums[r][v], w, parts[r]);
      }
    };
    add_part(std::integral_constant<int, 0>());
    if constexpr (L::NUM_PARTS == 2) add_part(std::integral_constant<int, 1>());
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(sums_of_rows + r * dim + first_dim + v * LANES, sums[r][v]);
}

template <class Stored, int R, bool ASKS>
AXIL_INLINE void weigh_rows(const typename KvLayout<Stored>::Query* weights, const uint32_t* const* words,
                            const uint32_t* const* later, int num_words, float* sums, int64_t dim) {
  const auto weigh = [&](auto vectors, int64_t d) AXIL_ALWAYS {
    weigh_dims<Stored, R, decltype(vectors)::value, ASKS>(weights, words, later, num_words, d, sums, dim);
  };
  int64_t d = 0;
  for (; d + 4 * LANES <= dim; d += 4 * LANES) weigh(std::integral_constant<int, 4>(), d);
  for (; d + 2 * LANES <= dim; d += 2 * LANES) weigh(std::integral_constant<int, 2>(), d);
  for (; d < dim; d += LANES) weigh(std::integral_constant<int, 1>(), d);
}

// Call `body(number of rows as a constant, first row)` over all rows.
template <class Body>
AXIL_INLINE void in_rows(int count, const Body& body) {
  int r = 0;
  for (; r + ROWS <= count; r += ROWS) body(std::integral_constant<int, ROWS>(), r);
  switch (count - r) {
    case 1: body(std::integral_constant<int, 1>(), r); break;
    case 2: body(std::integral_constant<int, 2>(), r); break;
    case 3: body(std::integral_constant<int, ROWS < 4 ? 1 : 3>(), r); break;
    case 4: body(std::integral_constant<int, ROWS < 5 ? 1 : 4>(), r); break;
    case 5: body(std::integral_constant<int, ROWS < 6 ? 1 : 5>(), r); break;
    default: break;
  }
}
