// Packed linear layers: y = x W^T (+ bias), then stored, added to a residual, or opened by a gate.
//
// One way of summing for every number of tokens: a token's outputs have the same bits alone and in any batch.

#include "linear.h"

#include <type_traits>
#include <vector>

#include "api.h"
#include "linear_tiles.h"
#include "linear_widened.h"
#include "threads.h"

namespace {

enum After : int32_t { STORE = 0, ADD = 1, SILU = 2, GELU_TANH = 3 };

struct Call {
  const Weight& w;
  const float* floats;  // tokens as the format's tiles take them: one of the three
  const Act* acts;
  ByteTokens bytes;
  int64_t stride;
  int32_t after;
  void* out;
  int32_t is_out_bf16;
  int64_t out_stride;
};

constexpr int64_t STRIP = 96;  // tokens that are taken through a block together: a multiple of every tile
static_assert(STRIP % TILE == 0 && STRIP % BYTE_TILE == 0, "a strip is cut into tiles");

struct Scratch {
  alignas(64) float sums[2][STRIP * BLOCK];
  alignas(64) float panel[SLICE * BLOCK];
};

// Cut tokens into tiles of at most MOST, of sizes as equal as can be: a small last one costs nearly as much as a full one.
template <int MOST, class Tile>
AXIL_INLINE void tiles(int64_t count, const Tile& tile) {
  int64_t left = (count + MOST - 1) / MOST;
  for (int64_t m = 0; left > 0; left--) {
    const int64_t size = (count - m + left - 1) / left;
    switch (size) {
      case 1: tile(std::integral_constant<int, 1>(), m); break;
      case 2: tile(std::integral_constant<int, 2>(), m); break;
      case 3: tile(std::integral_constant<int, 3>(), m); break;
      case 4: tile(std::integral_constant<int, 4>(), m); break;
      case 5: if constexpr (MOST > 4) tile(std::integral_constant<int, 5>(), m); break;
      case 6: if constexpr (MOST > 4) tile(std::integral_constant<int, 6>(), m); break;
      case 7: if constexpr (MOST > 6) tile(std::integral_constant<int, 7>(), m); break;
      default: if constexpr (MOST > 6) tile(std::integral_constant<int, 8>(), m); break;
    }
    m += size;
  }
}

// The sums of a block for tokens [first, first + count), count <= STRIP.
void sum_block(const Call& c, const uint8_t* block, int64_t first, int64_t count, Scratch& scratch, float* sums) {
  const Weight& w = c.w;
  memset(sums, 0, sizeof(float) * count * BLOCK);
  if (w.has_byte_activations) {
    tiles<BYTE_TILE>(count, [&](auto size, int64_t m) {
      constexpr int M = decltype(size)::value;
      if (w.format == INT8) byte_tile<M>(w, block, c.bytes, first + m, sums + m * BLOCK);
      else nibble_tile<M>(w, block, c.bytes, first + m, sums + m * BLOCK);
    });
    return;
  }
  if (w.format == BFLOAT16) {
    tiles<TILE>(count, [&](auto size, int64_t m) {
      constexpr int M = decltype(size)::value;
      pair_tile<M>(c.acts + (first + m) * c.stride, c.stride, block, w.num_columns / 2, sums + m * BLOCK);
    });
    return;
  }
  if (w.format != FLOAT32 && count <= FEW) {
    tiles<FEW>(count, [&](auto size, int64_t m) {
      constexpr int M = decltype(size)::value;
      widened_tile<M, 1>(w, block, c.floats + (first + m) * c.stride, c.stride, sums + m * BLOCK, 0);
    });
    return;
  }
  for (int64_t k = 0; k < w.num_columns; k += SLICE) {
    const int64_t width = w.num_columns - k < SLICE ? w.num_columns - k : SLICE;
    const float* panel = scratch.panel;
    if (w.format == FLOAT32) panel = reinterpret_cast<const float*>(block) + k * BLOCK;
    else expand(w, block, k, width, scratch.panel);
    const float* x = c.floats + first * c.stride + k;
    tiles<TILE>(count, [&](auto size, int64_t m) {
      constexpr int M = decltype(size)::value;
      if (w.format == FLOAT32 && count <= TILE)
        float_tile<M, true>(x + m * c.stride, c.stride, panel, width, sums + m * BLOCK);
      else
        float_tile<M, false>(x + m * c.stride, c.stride, panel, width, sums + m * BLOCK);
    });
  }
}

AXIL_INLINE Floats activated(int32_t after, Floats gate) {
  if (after == SILU) return mul(gate, sigmoid(gate));
  const Floats inner = mul(all(0.7978845608f), fma(mul(mul(gate, gate), gate), all(0.044715f), gate));
  return mul(mul(all(0.5f), gate), add(all(1.0f), hyperbolic_tangent(inner)));
}

template <class Element>
void write_out(const Call& c, int64_t block, int64_t first, int64_t count, const float* sums) {
  const int64_t n = block * BLOCK, left = c.w.num_outputs - n;
  const int64_t width = left < BLOCK ? left : BLOCK;
  const float* bias = bias_of(c.w);
  alignas(64) Element edge[BLOCK];
  for (int64_t m = 0; m < count; m++) {
    Element* const row = static_cast<Element*>(c.out) + (first + m) * c.out_stride + n;
    Element* const to = width == BLOCK ? row : edge;
    if (to == edge && c.after == ADD) memcpy(edge, row, width * sizeof(Element));
    for (int v = 0; v < BLOCK; v += LANES) {
      Floats y = load(sums + m * BLOCK + v);
      if (c.w.is_gated) {
        Floats opened = load(sums + (STRIP + m) * BLOCK + v);
        if (bias) {
          y = add(y, load(bias + 2 * n + v));
          opened = add(opened, load(bias + 2 * n + BLOCK + v));
        }
        y = mul(activated(c.after, y), opened);
      } else {
        if (bias) y = add(y, load(bias + n + v));
        if (c.after == ADD) y = add(load(to + v), y);
      }
      store(to + v, y);
    }
    if (to == edge) memcpy(row, edge, width * sizeof(Element));
  }
}

// Compute as many blocks of [block, end) as are best taken together; gives how many these were.
int64_t run_blocks(const Call& c, int64_t block, int64_t end, int64_t first, int64_t count, Scratch& scratch) {
  const int64_t bytes = block_bytes(c.w);
  const uint8_t* data = c.w.data + (c.w.is_gated ? 2 * block : block) * bytes;
  const bool is_widened = c.w.format >= INT8 && !c.w.has_byte_activations;
  const bool is_pair = is_widened && count == 1 && (c.w.is_gated || block + 1 < end);
  if (is_pair) {
    widened_tile<1, 2>(c.w, data, c.floats + first * c.stride, c.stride, scratch.sums[0], STRIP * BLOCK);
  } else {
    sum_block(c, data, first, count, scratch, scratch.sums[0]);
    if (c.w.is_gated) sum_block(c, data + bytes, first, count, scratch, scratch.sums[1]);
  }
  const int64_t done = is_pair && !c.w.is_gated ? 2 : 1;
  for (int64_t i = 0; i < done; i++) {
    if (c.is_out_bf16) write_out<Bf16>(c, block + i, first, count, scratch.sums[i]);
    else write_out<float>(c, block + i, first, count, scratch.sums[i]);
  }
  return done;
}

// Round one token to bytes. NaN and infinities make the scale NaN, and so all that comes of the token.
void round_token(const Weight& w, const float* x, uint8_t* q, float* scales, int32_t* sums) {
  for (int64_t first = 0; first < w.num_columns; first += w.group, scales++, sums++) {
    Floats most = zeros(), poison = zeros();
    for (int64_t k = 0; k < w.group; k += LANES) {
      const Floats v = load(x + first + k);
      most = max(most, abs(v));
      poison = fma(v, zeros(), poison);
    }
    const float peak = largest(most);
    const Floats inverse = all(peak > 0 ? 127.0f / peak : 0.0f);
    Ints total = int_zeros();
    for (int64_t k = 0; k < w.group; k += LANES) {
      const Ints rounded_to = to_ints(mul(load(x + first + k), inverse));
      total = add_ints(total, rounded_to);
      if (w.format == INT8) store_quads(q + (first + k) * QUAD_BYTES / 4, rounded_to);
      else store_bytes(q + first + k, rounded_to);
    }
    *scales = peak / 127.0f + sum(poison);
    *sums = sum_ints(total);
  }
}

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

// out[t] (+)= x[t] W^T for every token t. `x` is float32 or bf16 [num_tokens][num_columns]; rows of `out`, float32 or
// bf16, lie `out_stride` elements apart. `after`: 0 stores, 1 adds to what is there, 2 and 3 open by silu and gelu.
AXIL_API void axil_linear(const Weight* weight, const void* x, int32_t is_x_bf16, int64_t num_tokens, void* out,
                          int32_t is_out_bf16, int64_t out_stride, int32_t after) {
  const Weight& w = *weight;
  const int64_t columns = w.num_columns;
  // Kept between calls, which come one at a time.
  static std::vector<float> floats, scales;
  static std::vector<Act> acts;
  static std::vector<uint8_t> bytes;
  static std::vector<int32_t> sums;
  Call c{w, nullptr, nullptr, {}, columns, after, out, is_out_bf16, out_stride};
  const size_t size = static_cast<size_t>(num_tokens * columns);
  const bool has_pairs = AXIL_AVX512 && w.format == BFLOAT16;
  if (!has_pairs || !is_x_bf16) c.floats = static_cast<const float*>(x);
  if (is_x_bf16 && !has_pairs) {
    floats.resize(size);
    parallel_ranges(num_tokens, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * columns; i < end * columns; i++) floats[i] = widened(static_cast<const Bf16*>(x)[i]);
    });
    c.floats = floats.data();
  }
  if (w.has_byte_activations) {
    const int64_t groups = columns / w.group;
    bytes.resize(size * (w.format == INT8 ? QUAD_BYTES : 4) / 4);
    scales.resize(static_cast<size_t>(num_tokens * groups));
    sums.resize(scales.size());
    const int64_t stride = static_cast<int64_t>(bytes.size()) / (num_tokens ? num_tokens : 1);
    parallel_ranges(num_tokens, 8, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++)
        round_token(w, c.floats + t * columns, bytes.data() + t * stride, scales.data() + t * groups,
                    sums.data() + t * groups);
    });
    c.bytes = {bytes.data(), scales.data(), sums.data(), columns, groups};
  }
#if AXIL_AVX512
  if (has_pairs) {
    c.acts = static_cast<const Act*>(x);
    if (!is_x_bf16) {
      acts.resize(size);
      parallel_ranges(num_tokens, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * columns; i < end * columns; i++) acts[i] = rounded(static_cast<const float*>(x)[i]);
      });
      c.acts = acts.data();
    }
  }
#else
  c.acts = c.floats;
#endif
  // Pieces of some 100 KB of weights: long streams, and enough of them that a late thread holds nobody up.
  const int64_t blocks = blocks_of(w.num_outputs), strips = (num_tokens + STRIP - 1) / STRIP;
  const int64_t each = block_bytes(w) * (w.is_gated ? 2 : 1);
  int64_t together = (128 << 10) / each;
  together = smaller(together, blocks / (2 * num_threads()));
  together = together < 1 ? 1 : together;
  const int64_t across = (blocks + together - 1) / together;
  parallel(across * strips, [&](int64_t piece) {
    alignas(64) static thread_local Scratch scratch;
    const int64_t first = piece / across * STRIP, begin = piece % across * together;
    const int64_t end = smaller(begin + together, blocks), count = smaller(STRIP, num_tokens - first);
    for (int64_t block = begin; block < end;) block += run_blocks(c, block, end, first, count, scratch);
  });
}
