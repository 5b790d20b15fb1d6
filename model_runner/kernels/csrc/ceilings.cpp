// What this machine can do at most, to hold measurements of the kernels against: reading memory, multiplying.

#include "amx.h"
#include "api.h"
#include "simd_bytes.h"
#include "threads.h"

// Read `num_bytes` from memory, by all threads; the result only keeps the reads from being left out. A CPU with AVX-512 reads
// faster where it is not asked ahead.
AXIL_API int64_t axil_read_all(const uint8_t* data, int64_t num_bytes) {
  constexpr int64_t PIECE = 1 << 18;
  static volatile int64_t sink;
  parallel((num_bytes + PIECE - 1) / PIECE, [&](int64_t piece) {
    const int64_t end = (piece + 1) * PIECE < num_bytes ? (piece + 1) * PIECE : num_bytes;
    Ints first = int_zeros(), second = int_zeros();
    for (int64_t i = piece * PIECE; i + 128 <= end; i += 128) {
      if (!AXIL_AVX512) {
        ask_for(data + i + 4096);
        ask_for(data + i + 4160);
      }
      for (int64_t at = 0; at < 128; at += 2 * LANES * 4) {
        first = add_ints(first, load_ints(data + i + at));
        second = add_ints(second, load_ints(data + i + at + LANES * 4));
      }
    }
    sink = sum_ints(add_ints(first, second));
  });
  return sink;
}

namespace {

// The products that weights are multiplied by; mirrored in ladder.py.
enum Products : int32_t { OF_FLOAT32 = 0, OF_BFLOAT16 = 1, OF_BYTES = 2, OF_NIBBLES = 3 };

// What is in a register is taken for unknown, so that nothing is worked out ahead or left out.
template <class Vector> AXIL_INLINE void conceal(Vector& v) { asm volatile("" : "+v"(v)); }
#if !AXIL_AVX512
AXIL_INLINE void conceal(ActQuad& x) {
  conceal(x.even);
  conceal(x.odd);
}
#endif

// `rounds` times `add(sum)` for each of CHAINS independent sums, on each thread; returns how often all together.
template <int CHAINS, class Vector, class Add>
int64_t add_up(int64_t rounds, const Vector& start, const Add& add) {
  const int64_t pieces = num_threads();
  parallel(pieces, [&](int64_t) {
    Add add_here = add;
    Vector sums[CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) sums[i] = start;
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; i++) {
        add_here(sums[i]);
        conceal(sums[i]);
      }
    }
  });
  return pieces * rounds * CHAINS;
}

#if AXIL_AMX
// The same in the tile registers, for four independent sums and a quarter of the rounds, which take longer.
template <bool IS_BYTES>
int64_t add_up_tiles(int64_t rounds) {
  constexpr int64_t OPERATIONS = 2 * MOST_ROWS * 16 * (IS_BYTES ? 64 : 32);  // of a product
  const int64_t pieces = num_threads();
  parallel(pieces, [&](int64_t) {
    TileShapes shapes;
    for (int t = 0; t < 8; t++) shapes.row_bytes[t] = 64, shapes.rows[t] = MOST_ROWS;
    const Tiles registers(shapes);
    for (int64_t round = 0; round < rounds / 4; round++) {
      add_products<IS_BYTES, 0, 4, 6>();
      add_products<IS_BYTES, 1, 4, 7>();
      add_products<IS_BYTES, 2, 5, 6>();
      add_products<IS_BYTES, 3, 5, 7>();
    }
  });
  return OPERATIONS * pieces * (rounds / 4) * 4;
}
#endif

}  // namespace

// About `rounds` times several independent products and sums on each thread; returns the operations, a product and its sum
// counted as two.
AXIL_API int64_t axil_multiply_all(int32_t products, int64_t rounds) {
  constexpr int64_t NUM_BYTES = sizeof(Ints);
  static const uint8_t ones[sizeof(Ints)] = {1, 1, 1, 1, 1, 1, 1, 1};
  switch (products) {
#if AXIL_AMX
    case OF_BFLOAT16: return add_up_tiles<false>(rounds);
    case OF_BYTES: return add_up_tiles<true>(rounds);
#else
    case OF_BFLOAT16: {
      const Weights weights = part<0>(int_zeros());
      const Act tokens[2] = {};
      const ActPart x = all_part<0>(tokens);
      return 4 * LANES / PARTS * add_up<12>(rounds, zeros(), [=](Floats& sum) { sum = accumulate(sum, weights, x); });
    }
    case OF_BYTES: {
      const ByteWeights weights = load_bytes(ones);
      return 2 * NUM_BYTES * add_up<8>(rounds, int_zeros(), [weights, x = all_quads(ones)](Ints& sum) mutable {
               conceal(x);
               dot_quads(sum, weights, x);
             });
    }
#endif
    case OF_NIBBLES: {
      const Ints weights = load_ints(ones);
      return 2 * NUM_BYTES * add_up<8>(rounds, int_zeros(), [weights, x = weights](Ints& sum) mutable {
               conceal(x);
               dot_nibbles(sum, weights, x);
             });
    }
    default: {
      const Floats factor = all(0.999f), step = all(1e-3f);
      return 2 * LANES * add_up<12>(rounds, zeros(), [=](Floats& sum) { sum = fma(sum, factor, step); });
    }
  }
}
