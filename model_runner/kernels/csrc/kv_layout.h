// How K and V lie in the pool, for either type of storage.
//
// A block is the K and V of 16 neighbouring positions and one kv head, in words of 4 bytes, so that neither the product
// with a query nor that with the weights needs a sum across lanes:
//   K: [head_dim / STEP][16 positions] words, a word being STEP neighbouring dimensions of one position;
//   V: [16 / STEP][head_dim] words, a word being STEP neighbouring positions of one dimension.
// STEP is 1 in float32 and 2 in bfloat16. Pages are [page_tokens / 16][kv heads] blocks. Head dimensions are padded with
// zeros to a multiple of 16.
#pragma once

#include "simd.h"

constexpr int BLOCK = 16;

template <class Stored>
struct KvLayout;

template <>
struct KvLayout<float> {
  static constexpr int STEP = 1, NUM_PARTS = 1;
  using Query = float;
  template <int PART> AXIL_INLINE Floats weights(const uint32_t* p) { return load(reinterpret_cast<const float*>(p)); }
  template <int PART> AXIL_INLINE Floats query(const Query* p) { return all(*p); }
  AXIL_INLINE Floats product(Floats sum, Floats weights, Floats x) { return fma(weights, x, sum); }
};

template <>
struct KvLayout<Bf16> {
  static constexpr int STEP = 2, NUM_PARTS = PARTS;
  using Query = Act;
  template <int PART> AXIL_INLINE Weights weights(const uint32_t* p) { return part<PART>(load_ints(p)); }
  template <int PART> AXIL_INLINE ActPart query(const Query* p) { return all_part<PART>(p); }
  AXIL_INLINE Floats product(Floats sum, Weights weights, ActPart x) { return accumulate(sum, weights, x); }
};

// The pool of one layer.
template <class Stored>
struct KvPool {
  Stored* memory;
  int64_t num_kv_heads, head_dim, page_tokens;

  int64_t block_elements() const { return 2 * BLOCK * head_dim; }
  Stored* block(int64_t page, int64_t offset, int64_t head) const {
    return memory + ((page * (page_tokens / BLOCK) + offset / BLOCK) * num_kv_heads + head) * block_elements();
  }
};
