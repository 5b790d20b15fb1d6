// Tokens as the tiles of a linear layer read them: cut into tiles, interleaved or rounded to what weights are.
#pragma once

#include <vector>

#include "hadamard.h"
#include "lines.h"
#include "linear_amx.h"
#include "linear_paired.h"
#include "linear_tiles.h"
#include "linear_widened.h"
#include "threads.h"

namespace {

constexpr int64_t STRIP = 96;  // tokens that vectors take through a block together: a multiple of every tile
static_assert(STRIP % TILE == 0 && STRIP % BYTE_TILE == 0, "a strip is cut into tiles");
constexpr int64_t FEW_BYTES = 8, FEW_NIBBLES = 96;  // tokens up to which vectors multiply bytes faster than registers

// Tokens that lie side by side where a layer's products are those of the tile registers, and 0 where vectors compute them.
// Products of bytes are whole numbers, the same either way, and of few tokens vectors give them faster.
int64_t rows_of(const Weight& w, int64_t num_tokens) {
  if (!AXIL_AMX || w.format == FLOAT32) return 0;
  if (w.activations == BYTES) return num_tokens > (w.format == INT8 ? FEW_BYTES : FEW_NIBBLES) ? MOST_ROWS : 0;
  return w.format == BFLOAT16 || w.activations == PAIRS_OF_BF16 ? smaller(MOST_ROWS, num_tokens) : 0;
}

// The most tokens of a tile, of `count` that vectors take together.
int64_t tile_of(const Weight& w, int64_t count) {
  if (w.activations == BYTES) return BYTE_TILE;
  return w.format >= INT8 && w.activations == AS_THEY_ARE && count <= FEW ? FEW : TILE;
}

// Where a token goes: it is the `place`th of `apart` that lie side by side, from token `tile` on.
struct Placed {
  int64_t tile, place, apart;
  int64_t number() const { return tile + place; }
};

// Call `body(placed)` for every token, on all threads.
template <class Body>
void for_tokens(const Weight& w, int64_t num_tokens, const Body& body) {
  if (const int64_t apart = rows_of(w, num_tokens)) {
    parallel_ranges(num_tokens, 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) body(Placed{i / apart * apart, i % apart, apart});
    });
    return;
  }
  const int64_t strips = (num_tokens + STRIP - 1) / STRIP, most = tile_of(w, smaller(STRIP, num_tokens));
  const int64_t most_tiles = (smaller(STRIP, num_tokens) + most - 1) / most;
  parallel_ranges(strips * most_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t strip = i / most_tiles * STRIP, count = smaller(STRIP, num_tokens - strip);
      const int64_t most_here = tile_of(w, count), num_tiles = (count + most_here - 1) / most_here;
      if (i % most_tiles >= num_tiles) continue;
      const Tile tile = tile_at(i % most_tiles, num_tiles, count);
      for (int64_t place = 0; place < tile.size; place++) body(Placed{strip + tile.first, place, tile.size});
    }
  });
}

// Tokens for which there is room in what tiles read: registers are filled.
int64_t room_of(const Weight& w, int64_t num_tokens) {
  const int64_t rows = rows_of(w, num_tokens);
  return rows ? (num_tokens + rows - 1) / rows * rows : num_tokens;
}

AXIL_INLINE void convert(float x, float& to) { to = x; }
AXIL_INLINE void convert(Bf16 x, float& to) { to = widened(x); }
AXIL_INLINE void convert(Bf16 x, Bf16& to) { to = x; }
AXIL_INLINE void convert(float x, Bf16& to) { to = rounded(x); }

// Tokens in the order in which tiles read them, one address and fixed offsets for all of a tile:
// [tile][column / UNIT][token of the tile][UNIT], the last unit filled up with zeros.
template <int UNIT, class To, class From>
const To* interleaved(const Weight& w, const From* x, int64_t num_tokens, Lines<To>& memory) {
  const int64_t whole = w.num_columns / UNIT * UNIT, columns = (w.num_columns + UNIT - 1) / UNIT * UNIT;
  To* const out = memory.room_for(room_of(w, num_tokens) * columns);
  for_tokens(w, num_tokens, [&](const Placed& at) {
    const From* from = x + at.number() * w.num_columns;
    To* to = out + at.tile * columns + at.place * UNIT;
    for (int64_t k = 0; k < whole; k += UNIT, from += UNIT, to += at.apart * UNIT) {
      if constexpr (UNIT % LANES == 0) {
        for (int u = 0; u < UNIT; u += LANES) store(to + u, load(from + u));
      } else {
#pragma GCC unroll 2
        for (int u = 0; u < UNIT; u++) convert(from[u], to[u]);
      }
    }
    for (int64_t k = whole; k < columns; k++, from++, to++) {
      if (k < w.num_columns) convert(*from, *to);
      else *to = 0;
    }
  });
  return out;
}

// What belongs to the bytes of a token's group of columns.
struct Scales {
  float* scale;
  float* total;
  int32_t* zero;
};

// Round one token's group of columns to bytes, of which `put` gets those from column `k` on, a lane each. NaN and infinities
// make the scale NaN, and so all that comes of the token.
template <class From, class Put>
AXIL_INLINE void round_group(int64_t group, const From* x, const Scales& to, const Put& put) {
  Floats most = zeros(), poison = zeros();
  for (int64_t k = 0; k < group; k += LANES) {
    const Floats v = load(x + k);
    most = max(most, abs(v));
    poison = fma(v, zeros(), poison);
  }
  const float peak = largest(most), scale = peak / 127.0f + sum(poison);
  const Floats inverse = all(peak > 0 ? 127.0f / peak : 0.0f);
  Ints total = int_zeros();
  for (int64_t k = 0; k < group; k += LANES) {
    const Ints rounded_to = to_ints(mul(load(x + k), inverse));
    total = add_ints(total, rounded_to);
    put(k, rounded_to);
  }
  const int32_t whole = sum_ints(total);
  *to.scale = scale;
  *to.total = scale * static_cast<float>(whole);
  *to.zero = -128 * whole;
}

struct Bytes {
  Lines<uint8_t> q;
  Lines<float> scales, totals;
  Lines<int32_t> zeros;
};

// SIZE: what four columns take. In registers a row is of whole steps, of which zeros fill up the last.
template <int64_t SIZE, class From>
ByteTokens round_tokens(const Weight& w, const From* x, int64_t num_tokens, Bytes& memory) {
  const bool is_whole = is_rotated(w), is_in_rows = rows_of(w, num_tokens) > 0;  // one group; as registers read it
  const int64_t group = w.group, groups = w.num_columns / group, room = room_of(w, num_tokens);
  const int64_t row = (is_whole && is_in_rows ? stored_columns(w) : w.num_columns) / 4 * SIZE;
  uint8_t* const all_q = memory.q.room_for(room * row);
  const Scales all_scales{memory.scales.room_for(room * groups), memory.totals.room_for(room * groups),
                          memory.zeros.room_for(room * groups)};
  const auto round_columns = [&](const Placed& at, const auto* columns) AXIL_ALWAYS {
    uint8_t* const tile = all_q + at.tile * row;
    for (int64_t g = 0; g < groups; g++, columns += group) {
      const int64_t own = at.tile * groups + g * at.apart + at.place;
      const Scales scales{all_scales.scale + own, all_scales.total + own, all_scales.zero + own};
#if AXIL_AMX
      if (is_in_rows) {
        const int64_t step = is_whole ? ROW_BYTES : GROUP;
        const auto place_of = [&](int64_t k) { return tile + (k / step * at.apart + at.place) * step + k % step; };
        round_group(group, columns, scales,
                    [&](int64_t k, Ints rounded_to) AXIL_ALWAYS { store_bytes(place_of(g * group + k), rounded_to); });
        if (g + 1 == groups)
          for (int64_t k = w.num_columns; k < row; k += LANES) store_bytes(place_of(k), int_zeros());
        continue;
      }
#endif
      uint8_t* to = tile + (g * group / 4 * at.apart + at.place) * SIZE;
      round_group(group, columns, scales, [&](int64_t, Ints rounded_to) AXIL_ALWAYS {
        constexpr int QUADS = LANES / 4;
        alignas(64) uint8_t quads[QUADS * QUAD_BYTES];
        if (SIZE == QUAD_BYTES) store_quads(quads, rounded_to);
        else store_bytes(quads, rounded_to);
#pragma GCC unroll 4
        for (int i = 0; i < QUADS; i++, to += at.apart * SIZE) memcpy(to, quads + i * SIZE, SIZE);
      });
    }
  };
  for_tokens(w, num_tokens, [&](const Placed& at) {
    const From* const from = x + at.number() * w.num_columns;
    if (!is_whole) return round_columns(at, from);
    static thread_local std::vector<float> rotated;
    rotated.resize(static_cast<size_t>(w.num_columns));
    rotate_columns(from, w.num_columns, rotated.data());
    round_columns(at, rotated.data());
  });
  return {all_q, all_scales.scale, all_scales.total, all_scales.zero, w.num_columns, groups};
}

#if AXIL_AVX512
template <int FORMAT, class From>
PairTokens paired_tokens(const Weight& w, const From* x, int64_t num_tokens, Lines<Bf16>& acts, Lines<float>& totals) {
  const int64_t groups = w.num_columns / GROUP, room = room_of(w, num_tokens);
  Bf16* const all_acts = acts.room_for(room * w.num_columns);
  float* const all_totals = totals.room_for(room * groups);
  for_tokens(w, num_tokens, [&](const Placed& at) {
    pair_up<FORMAT>(x + at.number() * w.num_columns, groups, at.apart, all_acts + at.tile * w.num_columns + at.place * GROUP,
                    all_totals + at.tile * groups + at.place);
  });
  return {all_acts, all_totals, w.num_columns, groups};
}
#endif

#if AXIL_AMX
// Arranged tokens as registers read them; a row is of as many columns as a group or a step has.
TileTokens tile_tokens(const Weight& w, int64_t num_tokens, const void* rows) {
  const bool is_bytes = w.activations == BYTES;
  const int64_t row_bytes = is_bytes && w.format == INT4 ? GROUP : ROW_BYTES, columns = is_bytes ? row_bytes : row_bytes / 2;
  return {static_cast<const uint8_t*>(rows), rows_of(w, num_tokens), row_bytes, (w.num_columns + columns - 1) / columns};
}
#endif

// What a call's tiles read.
struct Tokens {
  Lines<float> floats;
  Lines<Act> acts;
  Bytes bytes;
};

}  // namespace
