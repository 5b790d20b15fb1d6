// The innermost loops of attention: a few queries meet the keys, and their weights the values, of one group of positions.
// What is seen and how weights come of scores is attention.cpp's.
#pragma once

#include <type_traits>

#include "kv_layout.h"

constexpr int GROUP = 64;  // positions whose scores are looked at together
constexpr int VECTORS = BLOCK / LANES;  // of one block's positions
constexpr int GROUP_BLOCKS = GROUP / BLOCK;
constexpr int ROWS = 6;  // queries at a time

// Vectors of sums that each of so many queries has at a time: as many as leave registers for the operands.
constexpr int vectors_for(int rows) { return REGISTERS == 32 || rows <= 3 ? 4 : 2; }

constexpr int LINE_WORDS = 16;

// sums[r][v] += weights[v] * the R queries at `x`, `stride` apart. Of operands the fewer stay in registers, and the others
// come one by one.
template <class L, int PART, int R, int V>
AXIL_INLINE void add_part(Floats (&sums)[R][V], const uint32_t* const (&words)[V], const typename L::Query* x,
                          int64_t stride) {
  if constexpr (R <= V) {
    decltype(L::template query<PART>(x)) parts[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) parts[r] = L::template query<PART>(x + r * stride);
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const auto w = L::template weights<PART>(words[v]);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sums[r][v] = L::product(sums[r][v], w, parts[r]);
    }
  } else {
    decltype(L::template weights<PART>(words[0])) w[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) w[v] = L::template weights<PART>(words[v]);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const auto one = L::template query<PART>(x + r * stride);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sums[r][v] = L::product(sums[r][v], w[v], one);
    }
  }
}

template <class L, int R, int V>
AXIL_INLINE void add_word(Floats (&sums)[R][V], const uint32_t* const (&words)[V], const typename L::Query* x,
                          int64_t stride) {
  add_part<L, 0>(sums, words, x, stride);
  if constexpr (L::NUM_PARTS == 2) {
    asm volatile("" ::: "memory");  // words are loaded again: kept, they would drive sums out of their registers
    add_part<L, 1>(sums, words, x, stride);
  }
}

// With ASKS it is asked for the blocks at the same places of `later`, which are needed one group later: pages lie anywhere, so
// no CPU looks far ahead by itself. Not inlined, as the next one, so that registers are given out for this loop alone.
template <class Stored, int R, int V, bool ASKS>
__attribute__((noinline)) void score_block_rows(const typename KvLayout<Stored>::Query* q, int64_t dim,
                                                const uint32_t* const* blocks, const uint32_t* const* later,
                                                float* scores) {
  using L = KvLayout<Stored>;
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sums[r][v] = zeros();
  for (int64_t d = 0; d < dim / L::STEP; d++) {
    if constexpr (ASKS)
      for (int b = 0; b < V / VECTORS; b++) ask_for_later(later[b] + d * BLOCK);
    const uint32_t* words[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) words[v] = blocks[v / VECTORS] + d * BLOCK + v % VECTORS * LANES;
    add_word<L>(sums, words, q + d * L::STEP, dim);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(scores + r * GROUP + v * LANES, sums[r][v]);
}

template <class Stored, int R, bool ASKS>
AXIL_INLINE void score_rows(const typename KvLayout<Stored>::Query* q, int64_t dim, const uint32_t* const* blocks,
                            const uint32_t* const* later, int num_blocks, float* scores) {
  constexpr int V = vectors_for(R), AT_ONCE = V / VECTORS;
  int b = 0;
  for (; b + AT_ONCE <= num_blocks; b += AT_ONCE)
    score_block_rows<Stored, R, V, ASKS>(q, dim, blocks + b, later + b, scores + b * BLOCK);
  for (; b < num_blocks; b++)
    score_block_rows<Stored, R, VECTORS, ASKS>(q, dim, blocks + b, later + b, scores + b * BLOCK);
}

template <class Stored, int R, int V, bool ASKS>
__attribute__((noinline)) void weigh_dims(const typename KvLayout<Stored>::Query* weights,
                                          const uint32_t* const* words, const uint32_t* const* later, int num_words,
                                          int64_t first_dim, float* sums_of_rows, int64_t dim) {
  using L = KvLayout<Stored>;
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sums[r][v] = load(sums_of_rows + r * dim + first_dim + v * LANES);
  for (int t = 0; t < num_words; t++) {
    if constexpr (ASKS)
      for (int at = 0; at < V * LANES; at += LINE_WORDS) ask_for_later(later[t] + first_dim + at);
    const uint32_t* values[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) values[v] = words[t] + first_dim + v * LANES;
    add_word<L>(sums, values, weights + t * L::STEP, GROUP);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(sums_of_rows + r * dim + first_dim + v * LANES, sums[r][v]);
}

template <class Stored, int R, bool ASKS>
AXIL_INLINE void weigh_rows(const typename KvLayout<Stored>::Query* weights, const uint32_t* const* words,
                            const uint32_t* const* later, int num_words, float* sums, int64_t dim) {
  const auto weigh = [&](auto vectors, int64_t& d) AXIL_ALWAYS {
    constexpr int V = decltype(vectors)::value;
    for (; d + V * LANES <= dim; d += V * LANES)
      weigh_dims<Stored, R, V, ASKS>(weights, words, later, num_words, d, sums, dim);
  };
  int64_t d = 0;
  if constexpr (vectors_for(R) == 4) weigh(std::integral_constant<int, 4>(), d);
  weigh(std::integral_constant<int, 2>(), d);
  weigh(std::integral_constant<int, 1>(), d);
}

// Call `body(number of rows as a constant, first row)` over all rows, in pieces of sizes as equal as can be.
template <class Body>
AXIL_INLINE void in_rows(int count, const Body& body) {
  int left = (count + ROWS - 1) / ROWS;
  for (int r = 0; left > 0; left--) {
    const int size = (count - r + left - 1) / left;
    switch (size) {
      case 1: body(std::integral_constant<int, 1>(), r); break;
      case 2: body(std::integral_constant<int, 2>(), r); break;
      case 3: body(std::integral_constant<int, 3>(), r); break;
      case 4: body(std::integral_constant<int, 4>(), r); break;
      case 5: body(std::integral_constant<int, 5>(), r); break;
      default: body(std::integral_constant<int, ROWS>(), r); break;
    }
    r += size;
  }
}
