// What lies between the linears of a decoder layer, on float32 activations: norms and rotary embedding.
// Each token is computed by itself, in an order that depends on nothing else.
#include <algorithm>
#include <cmath>

#include "api.h"
#include "simd.h"
#include "threads.h"

namespace {

constexpr int64_t SMALLEST = 1 << 13;  // elements that are worth another thread

int64_t rows_at_least(int64_t elements) { return std::max<int64_t>(1, SMALLEST / std::max<int64_t>(1, elements)); }

// out = x / rms(x) * weight; `out` may be `x`.
template <class Weight>
AXIL_INLINE void norm_row(const float* x, const Weight* weight, float eps, float* out, int64_t count) {
  Floats squares = zeros();
  in_vectors(count, [&](int64_t d, int n) {
    const Floats v = load_some(x + d, n);
    squares = fma(v, v, squares);
  });
  const Floats factor = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + eps));
  in_vectors(count, [&](int64_t d, int n) {
    store_some(out + d, mul(mul(load_some(x + d, n), factor), load_some(weight + d, n)), n);
  });
}

template <class Weight>
void add_norm(float* hidden, const float* added, const Weight* weight, float eps, float* out, int64_t rows,
              int64_t dim) {
  parallel_ranges(rows, rows_at_least(dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      float* row = hidden + t * dim;
      if (added)
        in_vectors(dim, [&](int64_t d, int n) {
          store_some(row + d, add(load_some(row + d, n), load_some(added + t * dim + d, n)), n);
        });
      norm_row(row, weight, eps, out + t * dim, dim);
    }
  });
}

// Turn the two halves of a head by the token's angles.
AXIL_INLINE void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
  in_vectors(half, [&](int64_t d, int n) {
    const Floats a = load_some(head + d, n), b = load_some(head + half + d, n);
    const Floats c = load_some(cosines + d, n), s = load_some(sines + d, n);
    store_some(head + d, sub(mul(a, c), mul(b, s)), n);
    store_some(head + half + d, add(mul(b, c), mul(a, s)), n);
  });
}

template <class Weight>
void rotate_heads(float* qkv, const float* cosines, const float* sines, const Weight* q_norm, const Weight* k_norm,
                  float eps, int64_t tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t width = (num_heads + 2 * num_kv_heads) * head_dim, half = head_dim / 2;
  parallel_ranges(tokens, rows_at_least(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      for (int64_t h = 0; h < num_heads + num_kv_heads; h++) {
        float* head = qkv + t * width + h * head_dim;
        const Weight* norm = h < num_heads ? q_norm : k_norm;
        if (norm) norm_row(head, norm, eps, head, head_dim);
        rotate(head, cosines + t * half, sines + t * half, half);
      }
  });
}

}  // namespace

// Add to the hidden states where there is something to add, and give their root mean square norm.
AXIL_API void axil_add_norm(float* hidden, const float* added, const void* weight, int32_t is_bf16, float eps,
                            float* out, int64_t rows, int64_t dim) {
  if (is_bf16)
    add_norm(hidden, added, static_cast<const Bf16*>(weight), eps, out, rows, dim);
  else
    add_norm(hidden, added, static_cast<const float*>(weight), eps, out, rows, dim);
}

// Norm (where there are weights) and turn the heads of q and k, in place; cosines and sines are [tokens][head_dim / 2].
AXIL_API void axil_rotate_heads(float* qkv, const float* cosines, const float* sines, const void* q_norm,
                                const void* k_norm, int32_t is_bf16, float eps, int64_t tokens, int64_t num_heads,
                                int64_t num_kv_heads, int64_t head_dim) {
  if (is_bf16)
    rotate_heads(qkv, cosines, sines, static_cast<const Bf16*>(q_norm), static_cast<const Bf16*>(k_norm), eps, tokens,
                 num_heads, num_kv_heads, head_dim);
  else
    rotate_heads(qkv, cosines, sines, static_cast<const float*>(q_norm), static_cast<const float*>(k_norm), eps,
                 tokens, num_heads, num_kv_heads, head_dim);
}

// Cosines and sines, times `scale`, of every position's angles: the position times frequency / divisor.
AXIL_API void axil_angles(const int64_t* positions, const float* frequencies, const float* divisors, float scale,
                          float* cosines, float* sines, int64_t tokens, int64_t half) {
  parallel_ranges(tokens, rows_at_least(16 * half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      for (int64_t d = 0; d < half; d++) {
        const float angle = static_cast<float>(positions[t]) * (frequencies[d] / divisors[d]);
        cosines[t * half + d] = std::cos(angle) * scale;
        sines[t * half + d] = std::sin(angle) * scale;
      }
  });
}

// cap * tanh(x / cap), in place.
AXIL_API void axil_softcap(float* x, float cap, int64_t rows, int64_t count) {
  parallel_ranges(rows, rows_at_least(4 * count), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      in_vectors(count, [&](int64_t d, int n) {
        const Floats v = load_some(x + t * count + d, n);
        store_some(x + t * count + d, mul(hyperbolic_tangent(mul(v, all(1 / cap))), all(cap)), n);
      });
  });
}
