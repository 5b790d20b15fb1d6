// Products of bytes over both instruction sets: VNNI has one instruction for four of them, AVX2 goes through 16 bits.
//
// `vpmaddubsw` saturates where two products of a full byte meet, so AVX2 widens the weights and finds the activations
// widened already; nibbles are small enough for it, eight times over.
#pragma once

#include "simd.h"

constexpr int NO_BYTES = static_cast<int>(0x80808000);  // of a lane that is shuffled: zeros, but for its lowest byte

#if AXIL_AVX512

constexpr int QUAD_BYTES = 4;  // what four rounded activations take
using ByteWeights = Ints;
using ActQuad = Ints;

AXIL_INLINE ByteWeights load_bytes(const uint8_t* p) { return load_ints(p); }
AXIL_INLINE ActQuad all_quads(const uint8_t* p) {
  int32_t quad;
  memcpy(&quad, p, 4);
  return all_ints(quad);
}
// sum += w[4i .. 4i+3] (unsigned) * x[0 .. 3] (signed) in every lane i.
AXIL_INLINE void dot_quads(Ints& sum, ByteWeights weights, ActQuad x) { dot_bytes(sum, weights, x); }

// Byte BYTE of every lane.
template <int BYTE> AXIL_INLINE Ints byte_of(Ints v) {
  constexpr int A = NO_BYTES | BYTE, B = A + 4, C = A + 8, D = A + 12;
  return BYTE == 3 ? shift_right<24>(v) : _mm512_shuffle_epi8(v, _mm512_setr4_epi32(A, B, C, D));
}

// Low bytes of the lanes, as the nibbles' activations lie.
AXIL_INLINE void store_bytes(uint8_t* p, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
AXIL_INLINE void store_quads(uint8_t* p, Ints v) { store_bytes(p, v); }

AXIL_INLINE void dot_nibbles(Ints& sum, Ints weights, Ints x) { dot_bytes(sum, weights, x); }
AXIL_INLINE Ints nibble_total(Ints sum) { return sum; }

AXIL_INLINE Floats load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#else

// Byte BYTE of every lane.
template <int BYTE> AXIL_INLINE Ints byte_of(Ints v) {
  constexpr int A = NO_BYTES | BYTE, B = A + 4, C = A + 8, D = A + 12;
  return BYTE == 3 ? shift_right<24>(v) : _mm256_shuffle_epi8(v, _mm256_setr_epi32(A, B, C, D, A, B, C, D));
}

constexpr int QUAD_BYTES = 8;  // 16 bits each: 0 and 2, then 1 and 3
struct ByteWeights {
  Ints even, odd;
};
struct ActQuad {
  Ints even, odd;
};

AXIL_INLINE ByteWeights load_bytes(const uint8_t* p) {
  const Ints four = load_ints(p);
  return {and_bits(four, all_ints(0x00ff00ff)), _mm256_srli_epi16(four, 8)};
}
AXIL_INLINE ActQuad all_quads(const uint8_t* p) {
  int32_t even, odd;
  memcpy(&even, p, 4);
  memcpy(&odd, p + 4, 4);
  return {all_ints(even), all_ints(odd)};
}
// sum += w[4i .. 4i+3] (unsigned) * x[0 .. 3] (signed) in every lane i. The sums are assembly here and below: those of
// intrinsics are put into another order by gcc 12, which multiplies a whole group first and keeps all of it on the stack.
AXIL_INLINE void dot_quads(Ints& sum, ByteWeights weights, ActQuad x) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(weights.even, x.even)));
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(weights.odd, x.odd)));
}

// Low bytes of the lanes, as the nibbles' activations lie.
AXIL_INLINE void store_bytes(uint8_t* p, Ints v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
AXIL_INLINE void store_quads(uint8_t* p, Ints v) {
  const Ints ordered = _mm256_shuffle_epi32(v, 0xd8);  // 0 2 1 3 of each half
  const __m128i low = _mm256_castsi256_si128(ordered), high = _mm256_extracti128_si256(ordered, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(low, high));
}

// A group of 32 nibbles is eight of these: 8 * 2 * 15 * 127 = 30,480, which 16 bits hold.
AXIL_INLINE void dot_nibbles(Ints& sum, Ints weights, Ints x) {
  asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(_mm256_maddubs_epi16(weights, x)));
}
AXIL_INLINE Ints nibble_total(Ints sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

AXIL_INLINE Floats load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#endif
