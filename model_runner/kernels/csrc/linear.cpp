// Packed linear layers: y = x W^T (+ bias), stored or opened by a gate.
//
// One way of summing for every number of tokens: a token's outputs have the same bits alone and in any batch.

#include "linear.h"

#include <optional>
#include <type_traits>

#include "api.h"
#include "linear_tokens.h"
#include "threads.h"

namespace {

struct Call {
  const Weight& w;
  const float* floats = nullptr;  // tokens as the tiles take them: one of the four, and how registers read it
  const Act* acts = nullptr;
  ByteTokens bytes = {};
  PairTokens pairs = {};
#if AXIL_AMX
  TileTokens rows = {};
#endif
  float* out = nullptr;
};

// Tokens that registers take through a block together: as many as leave the second cache room for them.
constexpr int64_t LONG_STRIP = AXIL_AMX ? 512 : STRIP;

struct Scratch {
  alignas(64) float sums[2][LONG_STRIP * BLOCK];
  alignas(64) float panel[SLICE * BLOCK];
};

// What a tile asks for that goes through a block in `num_steps`: the first one for what it reads itself, the
// others together for the block that is multiplied next.
AXIL_INLINE Asks asks_of(const Weight& w, const Place& place, const uint8_t* block, const uint8_t* next,
                         int64_t num_steps) {
  const int64_t pace = block_bytes(w) / num_steps, sharers = smaller(3, place.num_tiles - 1);
  if (place.number == 0) return {block + AHEAD, pace};
  if (place.number > sharers) return {block, 0};
  const int64_t share = (pace + sharers - 1) / sharers;
  return {next + (place.number - 1) * share * num_steps, share};
}

#if AXIL_AMX
// The sums of a block for tokens [first, first + count), count <= LONG_STRIP; `first` begins a tile.
void sum_in_registers(const Call& c, const uint8_t* block, const uint8_t* next, int64_t first, int64_t count,
                      Scratch& scratch, float* sums) {
  const Weight& w = c.w;
  const TileTokens& x = c.rows;
  const int64_t num_tiles = (count + x.num_rows - 1) / x.num_rows;
  const uint8_t* const rows = x.rows + first / x.num_rows * x.tile_bytes();
  if (w.format == BFLOAT16) return sum_steps<false>(x, rows, num_tiles, block, next, sums);
  if (is_rotated(w)) {
    sum_steps<true>(x, rows, num_tiles, block, next, sums);
    return scale_bytes(c.bytes.zeros + first, c.bytes.scales + first, rotated_scales(w, block), count, sums);
  }
  for (int64_t i = 0; i < num_tiles * x.num_rows * BLOCK; i += LANES) store(sums + i, zeros());
  uint8_t* const panel = reinterpret_cast<uint8_t*>(scratch.panel);
  const int64_t at = first * x.num_steps;
  if (w.activations == BYTES)
    return sum_groups<true, INT4>(w, x, rows, c.bytes.scales + at, c.bytes.totals + at, num_tiles, block, panel, sums);
  const float* const totals = c.pairs.totals + at;
  if (w.format == INT8) sum_groups<false, INT8>(w, x, rows, totals, totals, num_tiles, block, panel, sums);
  else sum_groups<false, INT4>(w, x, rows, totals, totals, num_tiles, block, panel, sums);
}
#endif

// The sums of a block for tokens [first, first + count), count <= STRIP where vectors compute them.
void sum_block(const Call& c, const uint8_t* block, const uint8_t* next, int64_t first, int64_t count, Scratch& scratch,
               float* sums) {
  const Weight& w = c.w;
#if AXIL_AMX
  if (c.rows.num_rows) return sum_in_registers(c, block, next, first, count, scratch, sums);
#endif
  for (int64_t i = 0; i < count * BLOCK; i += LANES) store(sums + i, zeros());
  if (w.activations == BYTES) {
    const int64_t num_steps = w.format == INT8 ? w.num_columns / 4 : w.num_columns / GROUP;
    tiles<BYTE_TILE>(count, [&](auto size, const Place& at) {
      constexpr int M = decltype(size)::value;
      const Asks asks = asks_of(w, at, block, next, num_steps);
      float* const to = sums + at.first * BLOCK;
      if (w.format == INT8) byte_tile<M>(block, rotated_scales(w, block), c.bytes, first + at.first, asks, to);
      else nibble_tile<M>(w, block, c.bytes, first + at.first, asks, to);
    });
    return;
  }
#if AXIL_AVX512 && !AXIL_AMX
  if (w.activations == PAIRS_OF_BF16) {
    tiles<TILE>(count, [&](auto size, const Place& at) {
      constexpr int M = decltype(size)::value;
      const Asks asks = asks_of(w, at, block, next, c.pairs.num_groups);
      float* const to = sums + at.first * BLOCK;
      if (w.format == INT8) paired_tile<INT8, M>(w, block, c.pairs, first + at.first, asks, to);
      else paired_tile<INT4, M>(w, block, c.pairs, first + at.first, asks, to);
    });
    return;
  }
#endif
#if !AXIL_AMX
  if (w.format == BFLOAT16) {
    tiles<TILE>(count, [&](auto size, const Place& at) {
      constexpr int M = decltype(size)::value;
      const Asks asks = asks_of(w, at, block, next, w.num_columns / 2);
      pair_tile<M>(c.acts + (first + at.first) * w.num_columns, block, w.num_columns / 2, asks, sums + at.first * BLOCK);
    });
    return;
  }
#endif
  const float* const x = c.floats + first * w.num_columns;
  if (w.format != FLOAT32 && count <= FEW) {
    tiles<FEW>(count, [&](auto size, const Place& at) {
      constexpr int M = decltype(size)::value;
      widened_tile<M, 1>(w, block, x + at.first * w.num_columns, sums + at.first * BLOCK, 0);
    });
    return;
  }
  for (int64_t k = 0; k < w.num_columns; k += SLICE) {
    const int64_t width = smaller(SLICE, w.num_columns - k);
    const float* panel = scratch.panel;
    if (w.format == FLOAT32) panel = reinterpret_cast<const float*>(block) + k * BLOCK;
    else expand(w, block, k, width, scratch.panel);
    tiles<TILE>(count, [&](auto size, const Place& at) {
      constexpr int M = decltype(size)::value;
      const float* const tile = x + at.first * w.num_columns + k * M;
      float* const to = sums + at.first * BLOCK;
      if (w.format == FLOAT32 && count <= TILE) float_tile<M, true>(tile, panel, width, to);
      else float_tile<M, false>(tile, panel, width, to);
    });
  }
}

AXIL_INLINE Floats activated(int32_t kind, Floats gate) {
  if (kind == SILU) return mul(gate, sigmoid(gate));
  // gelu by the tanh, which is 2 sigmoid(2 y) - 1
  const Floats y = mul(all(0.7978845608f), fma(mul(all(0.044715f), gate), mul(gate, gate), gate));
  return mul(gate, sigmoid(add(y, y)));
}

constexpr int64_t WRITTEN_AHEAD = 8;  // tokens

void write_out(const Call& c, int64_t block, int64_t first, int64_t count, const float* sums) {
  const int64_t n = block * BLOCK, left = c.w.num_outputs - n;
  const int64_t width = left < BLOCK ? left : BLOCK;
  const float* bias = bias_of(c.w);
  alignas(64) float edge[BLOCK];
  for (int64_t m = 0; m < count; m++) {
    float* const row = c.out + (first + m) * c.w.num_outputs + n;
    if (AXIL_AMX)  // what another thread has read takes as long to write as to read
      for (int v = 0; v < BLOCK; v += LANES) ask_to_write(row + WRITTEN_AHEAD * c.w.num_outputs + v);
    float* const to = width == BLOCK ? row : edge;
    for (int v = 0; v < BLOCK; v += LANES) {
      Floats y = load(sums + m * BLOCK + v);
      if (c.w.gate) {
        Floats opened = load(sums + (LONG_STRIP + m) * BLOCK + v);
        if (bias) {
          y = add(y, load(bias + 2 * n + v));
          opened = add(opened, load(bias + 2 * n + BLOCK + v));
        }
        y = mul(activated(c.w.gate, y), opened);
      } else if (bias) {
        y = add(y, load(bias + n + v));
      }
      store(to + v, y);
    }
    if (to == edge) memcpy(row, edge, width * sizeof(float));
  }
}

// Compute as many blocks of [block, end) as are best taken together; gives how many these were.
int64_t run_blocks(const Call& c, int64_t block, int64_t end, int64_t first, int64_t count, Scratch& scratch) {
  const int64_t bytes = block_bytes(c.w);
  const uint8_t* data = c.w.data + (c.w.gate ? 2 * block : block) * bytes;
  const bool is_widened = c.w.format >= INT8 && c.w.activations == AS_THEY_ARE;
  const bool is_pair = is_widened && count == 1 && (c.w.gate || block + 1 < end);
  if (is_pair) {
    widened_tile<1, 2>(c.w, data, c.floats + first * c.w.num_columns, scratch.sums[0], LONG_STRIP * BLOCK);
  } else {
    const uint8_t* const next = data + (c.w.gate ? 2 * bytes : bytes);
    sum_block(c, data, c.w.gate ? data + bytes : next, first, count, scratch, scratch.sums[0]);
    if (c.w.gate) sum_block(c, data + bytes, next, first, count, scratch, scratch.sums[1]);
  }
  const int64_t done = is_pair && !c.w.gate ? 2 : 1;
  for (int64_t i = 0; i < done; i++) write_out(c, block + i, first, count, scratch.sums[i]);
  return done;
}

template <class From>
void arrange(const From* x, int64_t num_tokens, Tokens& tokens, Call& c) {
  const Weight& w = c.w;
  const void* arranged = nullptr;  // of registers
#if AXIL_AVX512
  if (w.activations == PAIRS_OF_BF16) {
    c.pairs = w.format == INT8 ? paired_tokens<INT8>(w, x, num_tokens, tokens.acts, tokens.floats)
                               : paired_tokens<INT4>(w, x, num_tokens, tokens.acts, tokens.floats);
    arranged = c.pairs.acts;
  } else
#endif
  if (w.activations == BYTES) {
    c.bytes = w.format == INT8 ? round_tokens<QUAD_BYTES>(w, x, num_tokens, tokens.bytes)
                               : round_tokens<4>(w, x, num_tokens, tokens.bytes);
    arranged = c.bytes.q;
  } else if (w.format == BFLOAT16) {
    arranged = c.acts = interleaved<AXIL_AMX ? 32 : 2>(w, x, num_tokens, tokens.acts);
  } else {
    c.floats = interleaved<1>(w, x, num_tokens, tokens.floats);
  }
#if AXIL_AMX
  c.rows = tile_tokens(w, num_tokens, arranged);
#else
  (void)arranged;
#endif
}

}  // namespace

// out[t] = x[t] W^T for every token t, or what the gate lets through. `x` is float32 or bf16 [num_tokens][num_columns], `out`
// [num_tokens][num_outputs].
AXIL_API void axil_linear(const Weight* weight, const void* x, int32_t is_x_bf16, int64_t num_tokens, float* out) {
  const Weight& w = *weight;
  static Tokens tokens;  // kept between calls, which come one at a time
  Call c{w};
  c.out = out;
  if (is_x_bf16) arrange(static_cast<const Bf16*>(x), num_tokens, tokens, c);
  else arrange(static_cast<const float*>(x), num_tokens, tokens, c);
  // Pieces of some 100 KB of weights: long streams, and enough of them that a late thread holds nobody up. Threads take
  // them in turns, so pieces are numbered in turns too, through as many stretches of the weights: as long as nobody is late
  // each thread reads one stretch from its beginning to its end.
  const int64_t strip = rows_of(w, num_tokens) ? LONG_STRIP : STRIP;
  const int64_t blocks = blocks_of(w.num_outputs), strips = (num_tokens + strip - 1) / strip;
  const int64_t each = block_bytes(w) * (w.gate ? 2 : 1), stretches = num_threads();
  int64_t together = (128 << 10) / each;
  together = smaller(together, blocks / (4 * stretches));
  together = together < 1 ? 1 : together;
  const int64_t across = (blocks + together - 1) / together;
  parallel(across * strips, [&](int64_t piece) {
    alignas(64) static thread_local Scratch scratch;
#if AXIL_AMX
    std::optional<Tiles> registers;
    if (c.rows.num_rows) registers.emplace(shapes_for(c.rows));
#endif
    const int64_t first = piece / across * strip, turn = piece % across, stretch = turn % stretches;
    const int64_t place = stretch * (across / stretches) + smaller(stretch, across % stretches) + turn / stretches;
    const int64_t begin = place * together, end = smaller(begin + together, blocks);
    const int64_t count = smaller(strip, num_tokens - first);
    for (int64_t block = begin; block < end;) block += run_blocks(c, block, end, first, count, scratch);
  });
}
