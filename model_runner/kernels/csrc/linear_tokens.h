// Tokens as the tiles of a linear layer read them: cut into tiles, interleaved or rounded to what weights are.
#pragma once

#include <vector>

#include "hadamard.h"
#include "linear_paired.h"
#include "linear_tiles.h"
#include "linear_widened.h"
#include "threads.h"

namespace {

constexpr int64_t STRIP = 96;  // tokens that are taken through a block together: a multiple of every tile
static_assert(STRIP % TILE == 0 && STRIP % BYTE_TILE == 0, "a strip is cut into tiles");

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Tokens [first, first + size) of those that are taken together.
struct Tile {
  int64_t first, size;
};

// One of the `num_tiles` that `count` tokens are cut into, of sizes as equal as can be: a small last one costs nearly as
// much as a full one.
AXIL_INLINE Tile tile_at(int64_t index, int64_t num_tiles, int64_t count) {
  const int64_t size = count / num_tiles, larger = count % num_tiles;
  return {index * size + smaller(index, larger), size + (index < larger)};
}

// The most tokens of a tile, of `count` that are taken together.
int64_t tile_of(const Weight& w, int64_t count) {
  if (w.activations == BYTES) return BYTE_TILE;
  return w.format >= INT8 && w.activations == AS_THEY_ARE && count <= FEW ? FEW : TILE;
}

AXIL_INLINE void convert(float x, float& to) { to = x; }
AXIL_INLINE void convert(Bf16 x, float& to) { to = widened(x); }
AXIL_INLINE void convert(Bf16 x, Bf16& to) { to = x; }
AXIL_INLINE void convert(float x, Bf16& to) { to = rounded(x); }

// Call `body(tile)` for every tile of every strip, on all threads.
template <class Body>
void for_tiles(const Weight& w, int64_t num_tokens, const Body& body) {
  const int64_t strips = (num_tokens + STRIP - 1) / STRIP, most = tile_of(w, smaller(STRIP, num_tokens));
  const int64_t most_tiles = (smaller(STRIP, num_tokens) + most - 1) / most;
  parallel_ranges(strips * most_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t strip = i / most_tiles * STRIP, count = smaller(STRIP, num_tokens - strip);
      const int64_t most_here = tile_of(w, count), num_tiles = (count + most_here - 1) / most_here;
      if (i % most_tiles >= num_tiles) continue;
      const Tile tile = tile_at(i % most_tiles, num_tiles, count);
      body(Tile{strip + tile.first, tile.size});
    }
  });
}

// Tokens in the order in which tiles read them, one address and fixed offsets for all of a tile:
// [tile][column / UNIT][token of the tile][UNIT].
template <int UNIT, class To, class From>
const To* interleaved(const Weight& w, const From* x, int64_t num_tokens, std::vector<To>& out) {
  const int64_t columns = w.num_columns;
  out.resize(static_cast<size_t>(num_tokens * columns));
  for_tiles(w, num_tokens, [&](const Tile& tile) {
    for (int64_t i = 0; i < tile.size; i++) {
      const From* from = x + (tile.first + i) * columns;
      To* to = out.data() + tile.first * columns + i * UNIT;
      for (int64_t k = 0; k < columns; k += UNIT, from += UNIT, to += tile.size * UNIT)
#pragma GCC unroll 2
        for (int u = 0; u < UNIT; u++) convert(from[u], to[u]);
    }
  });
  return out.data();
}

// Bytes of a token for a group, and what belongs to them: the next token of its tile lies `apart` behind.
struct RoundedTo {
  uint8_t* q;
  float* scale;
  float* total;
  int32_t* zero;
};

// Round one token's group of columns to bytes, SIZE for four of them. NaN and infinities make the scale NaN, and so all
// that comes of the token.
template <int64_t SIZE, class From>
AXIL_INLINE void round_group(int64_t group, const From* x, int64_t apart, const RoundedTo& to) {
  constexpr int QUADS = LANES / 4;
  Floats most = zeros(), poison = zeros();
  for (int64_t k = 0; k < group; k += LANES) {
    const Floats v = load(x + k);
    most = max(most, abs(v));
    poison = fma(v, zeros(), poison);
  }
  const float peak = largest(most), scale = peak / 127.0f + sum(poison);
  const Floats inverse = all(peak > 0 ? 127.0f / peak : 0.0f);
  Ints total = int_zeros();
  uint8_t* q = to.q;
  for (int64_t k = 0; k < group; k += LANES) {
    alignas(64) uint8_t quads[QUADS * QUAD_BYTES];
    const Ints rounded_to = to_ints(mul(load(x + k), inverse));
    total = add_ints(total, rounded_to);
    if (SIZE == QUAD_BYTES) store_quads(quads, rounded_to);
    else store_bytes(quads, rounded_to);
#pragma GCC unroll 4
    for (int i = 0; i < QUADS; i++, q += apart * SIZE) memcpy(q, quads + i * SIZE, SIZE);
  }
  const int32_t whole = sum_ints(total);
  *to.scale = scale;
  *to.total = scale * static_cast<float>(whole);
  *to.zero = -128 * whole;
}

struct Bytes {
  std::vector<uint8_t> q;
  std::vector<float> scales, totals;
  std::vector<int32_t> zeros;
};

template <int64_t SIZE, class From>
ByteTokens round_tokens(const Weight& w, const From* x, int64_t num_tokens, Bytes& out) {
  const int64_t group = w.group, groups = w.num_columns / group, row = w.num_columns / 4 * SIZE;
  out.q.resize(static_cast<size_t>(num_tokens * row));
  out.scales.resize(static_cast<size_t>(num_tokens * groups));
  out.totals.resize(out.scales.size());
  out.zeros.resize(out.scales.size());
  for_tiles(w, num_tokens, [&](const Tile& tile) {
    for (int64_t i = 0; i < tile.size; i++) {
      const From* from = x + (tile.first + i) * w.num_columns;
      uint8_t* q = out.q.data() + tile.first * row + i * SIZE;
      int64_t at = tile.first * groups + i;
      if (is_rotated(w)) {
        static thread_local std::vector<float> rotated;
        rotated.resize(static_cast<size_t>(w.num_columns));
        rotate_columns(from, w.num_columns, rotated.data());
        round_group<SIZE>(group, rotated.data(), tile.size, {q, &out.scales[at], &out.totals[at], &out.zeros[at]});
        continue;
      }
      for (int64_t g = 0; g < groups; g++, from += group, q += group / 4 * tile.size * SIZE, at += tile.size)
        round_group<SIZE>(group, from, tile.size, {q, &out.scales[at], &out.totals[at], &out.zeros[at]});
    }
  });
  return {out.q.data(), out.scales.data(), out.totals.data(), out.zeros.data(), w.num_columns, groups};
}

#if AXIL_AVX512
template <int FORMAT, class From>
PairTokens paired_tokens(const Weight& w, const From* x, int64_t num_tokens, std::vector<Bf16>& acts,
                         std::vector<float>& totals) {
  const int64_t groups = w.num_columns / GROUP;
  acts.resize(static_cast<size_t>(num_tokens * w.num_columns));
  totals.resize(static_cast<size_t>(num_tokens * groups));
  for_tiles(w, num_tokens, [&](const Tile& tile) {
    for (int64_t i = 0; i < tile.size; i++)
      pair_up<FORMAT>(x + (tile.first + i) * w.num_columns, groups, tile.size,
                      acts.data() + tile.first * w.num_columns + i * GROUP, totals.data() + tile.first * groups + i);
  });
  return {acts.data(), totals.data(), w.num_columns, groups};
}
#endif

// What a call's tiles read.
struct Tokens {
  std::vector<float> floats;
  std::vector<Act> acts;
  Bytes bytes;
};

}  // namespace
