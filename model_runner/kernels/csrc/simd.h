// One set of vector operations over the two instruction sets that the kernels are compiled for: AVX-512 (with bf16,
// VNNI and VBMI, 16 lanes) and AVX2 with FMA (8 lanes). A kernel is written once, for `LANES` lanes. Where AVX-512 has AMX beside
// it, products of many columns are its (`amx.h`).
//
// bfloat16 is storage. Where the CPU multiplies pairs of it (`vdpbf16ps`) activations are rounded to it too; elsewhere
// the pairs are widened to float32 by a shift and activations stay float32. `Act` is the activations' type; `part`,
// `all_part` and `accumulate` are the only places that know the difference.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define AXIL_AVX512 1
#else
#define AXIL_AVX512 0
#endif

#if AXIL_AVX512 && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define AXIL_AMX 1
#else
#define AXIL_AMX 0
#endif

// Checked builds call functions: inlined whole, each with its checks, a kernel would take minutes to compile.
#ifdef __SANITIZE_ADDRESS__
#define AXIL_ALWAYS
#else
#define AXIL_ALWAYS __attribute__((always_inline))
#endif
#define AXIL_INLINE static inline AXIL_ALWAYS

using Bf16 = uint16_t;

// Ask memory for a line, into the first cache, or into the second.
AXIL_INLINE void ask_for(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AXIL_INLINE void ask_for_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// The same to be written.
AXIL_INLINE void ask_to_write(const void* p) { asm volatile("prefetchw (%0)" ::"r"(p)); }

AXIL_INLINE float widened(Bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

// To the nearest, ties to even; NaN stays NaN.
AXIL_INLINE Bf16 rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if AXIL_AVX512

constexpr int LANES = 16;
constexpr int REGISTERS = 32;
using Floats = __m512;
using Ints = __m512i;
using Mask = __mmask16;

AXIL_INLINE Floats zeros() { return _mm512_setzero_ps(); }
AXIL_INLINE Floats all(float x) { return _mm512_set1_ps(x); }
AXIL_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
AXIL_INLINE void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
AXIL_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
AXIL_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
AXIL_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
AXIL_INLINE Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
// 1 / a to about 1 ulp for a between 1 and 2: Newton's step from 14 bits. NaN stays NaN.
AXIL_INLINE Floats inverse(Floats a) {
  const Floats near = _mm512_rcp14_ps(a);
  return _mm512_fmadd_ps(near, _mm512_fnmadd_ps(a, near, _mm512_set1_ps(1.0f)), near);
}
AXIL_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
AXIL_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
AXIL_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
AXIL_INLINE Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
AXIL_INLINE Floats abs(Floats a) { return _mm512_abs_ps(a); }
AXIL_INLINE Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
AXIL_INLINE Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }  // to the nearest
// a * 2^n of whole n, where that is a normal number.
AXIL_INLINE Floats scaled(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }
AXIL_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
AXIL_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
AXIL_INLINE void store_ints(void* p, Ints v) { _mm512_storeu_si512(p, v); }
AXIL_INLINE Ints int_zeros() { return _mm512_setzero_si512(); }
AXIL_INLINE Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
AXIL_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
AXIL_INLINE Ints sub_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
AXIL_INLINE Ints and_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
template <int N> AXIL_INLINE Ints shift_left(Ints a) { return _mm512_slli_epi32(a, N); }
template <int N> AXIL_INLINE Ints shift_right(Ints a) { return _mm512_srli_epi32(a, N); }
AXIL_INLINE Floats as_floats(Ints a) { return _mm512_castsi512_ps(a); }
AXIL_INLINE Ints as_ints(Floats a) { return _mm512_castps_si512(a); }
// Lane i is what was in lane i ^ N.
template <int N> AXIL_INLINE Floats crossed(Floats v) {
  if constexpr (N < 4) return _mm512_permute_ps(v, N == 1 ? 0xb1 : 0x4e);
  else return _mm512_shuffle_f32x4(v, v, N == 4 ? 0xb1 : 0x4e);
}
AXIL_INLINE float sum(Floats v) { return _mm512_reduce_add_ps(v); }
AXIL_INLINE float largest(Floats v) { return _mm512_reduce_max_ps(v); }
AXIL_INLINE int32_t sum_ints(Ints v) { return _mm512_reduce_add_epi32(v); }

// Lanes [first, end) are set; both may lie outside of the vector.
AXIL_INLINE Mask lanes(int first, int end) {
  first = first < 0 ? 0 : first > LANES ? LANES : first;
  end = end < first ? first : end > LANES ? LANES : end;
  return static_cast<Mask>((0xffffu >> (LANES - end)) & (0xffffu << first));
}
AXIL_INLINE Mask is_less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
AXIL_INLINE bool is_any_less(Floats a, Floats b) { return is_less(a, b) != 0; }
AXIL_INLINE Floats choose(Mask mask, Floats when_set, Floats otherwise) {
  return _mm512_mask_blend_ps(mask, otherwise, when_set);
}

AXIL_INLINE Floats load(const Bf16* p) {
  return as_floats(shift_left<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
}
AXIL_INLINE void store(Bf16* p, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

// Products of bf16 pairs come in parts: all of a pair at once here. `part` picks a part of each lane's pair of weights,
// `all_part` that of one pair of activations for all lanes.
using Act = Bf16;
using Weights = Ints;
using ActPart = Ints;
constexpr int PARTS = 1;
template <int PART> AXIL_INLINE Weights part(Ints pairs) { return pairs; }
template <int PART> AXIL_INLINE ActPart all_part(const Act* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}
AXIL_INLINE Floats accumulate(Floats sum, Weights weights, ActPart x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(x));
}

// The same with the pair of activations at `x`. Assembly, because gcc 12 keeps the pair in a register, and then sums on the
// stack.
AXIL_INLINE void dot_pairs(Floats& sum, Weights weights, const Act* x) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const Act(*)[2]>(x)));
}

// sum += w[4i .. 4i+3] (unsigned bytes) * x[0 .. 3] (signed bytes) in every lane i. Assembly, because gcc 12 keeps
// accumulators of the intrinsic on the stack.
AXIL_INLINE void dot_bytes(Ints& sum, Ints weights, Ints x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
}

#else  // AVX2

constexpr int LANES = 8;
constexpr int REGISTERS = 16;
using Floats = __m256;
using Ints = __m256i;
using Mask = __m256;

AXIL_INLINE Floats zeros() { return _mm256_setzero_ps(); }
AXIL_INLINE Floats all(float x) { return _mm256_set1_ps(x); }
AXIL_INLINE Floats load(const float* p) { return _mm256_loadu_ps(p); }
AXIL_INLINE void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
AXIL_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
AXIL_INLINE Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
AXIL_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
AXIL_INLINE Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
AXIL_INLINE Floats inverse(Floats a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
AXIL_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
AXIL_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
AXIL_INLINE Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
AXIL_INLINE Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
AXIL_INLINE Floats abs(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
AXIL_INLINE Floats nearest(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
AXIL_INLINE Ints to_ints(Floats a) { return _mm256_cvtps_epi32(a); }  // to the nearest
AXIL_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
AXIL_INLINE Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
AXIL_INLINE void store_ints(void* p, Ints v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
AXIL_INLINE Ints int_zeros() { return _mm256_setzero_si256(); }
AXIL_INLINE Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
AXIL_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
AXIL_INLINE Ints sub_ints(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
AXIL_INLINE Ints and_bits(Ints a, Ints b) { return _mm256_and_si256(a, b); }
template <int N> AXIL_INLINE Ints shift_left(Ints a) { return _mm256_slli_epi32(a, N); }
template <int N> AXIL_INLINE Ints shift_right(Ints a) { return _mm256_srli_epi32(a, N); }
AXIL_INLINE Floats as_floats(Ints a) { return _mm256_castsi256_ps(a); }
AXIL_INLINE Ints as_ints(Floats a) { return _mm256_castps_si256(a); }
template <int N> AXIL_INLINE Floats crossed(Floats v) {
  if constexpr (N < 4) return _mm256_permute_ps(v, N == 1 ? 0xb1 : 0x4e);
  else return _mm256_permute2f128_ps(v, v, 1);
}
AXIL_INLINE Floats scaled(Floats a, Floats n) { return as_floats(add_ints(as_ints(a), shift_left<23>(to_ints(n)))); }
AXIL_INLINE float sum(Floats v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
AXIL_INLINE float largest(Floats v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
AXIL_INLINE int32_t sum_ints(Ints v) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// Lanes [first, end) are set; both may lie outside of the vector.
AXIL_INLINE Mask lanes(int first, int end) {
  const Ints numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return as_floats(_mm256_and_si256(_mm256_cmpgt_epi32(numbers, all_ints(first - 1)),
                                    _mm256_cmpgt_epi32(all_ints(end), numbers)));
}
AXIL_INLINE Mask is_less(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
AXIL_INLINE bool is_any_less(Floats a, Floats b) { return _mm256_movemask_ps(is_less(a, b)) != 0; }
AXIL_INLINE Floats choose(Mask mask, Floats when_set, Floats otherwise) {
  return _mm256_blendv_ps(otherwise, when_set, mask);
}

AXIL_INLINE Floats load(const Bf16* p) {
  return as_floats(shift_left<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
}
AXIL_INLINE void store(Bf16* p, Floats v) {
  Ints bits = as_ints(v);
  Ints odd = and_bits(shift_right<16>(bits), all_ints(1));
  Ints high = shift_right<16>(add_ints(add_ints(bits, all_ints(0x7fff)), odd));
  Ints quiet = _mm256_or_si256(shift_right<16>(bits), all_ints(0x40));
  high = _mm256_blendv_epi8(high, quiet, as_ints(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// Products of bf16 pairs come in two parts: the first of each pair, then the second, both widened to float32.
using Act = float;
using Weights = Floats;
using ActPart = Floats;
constexpr int PARTS = 2;
// The mask comes from memory, which only assembly can ask for: in a register it would drive a sum out of its own, into
// memory and back.
alignas(32) constexpr uint32_t HIGH_HALVES[LANES] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                     0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
template <int PART> AXIL_INLINE Weights part(Ints pairs) {
  if (PART == 0) return as_floats(shift_left<16>(pairs));
  Ints high;
  asm("vpand %1, %2, %0" : "=x"(high) : "m"(*reinterpret_cast<const Ints*>(HIGH_HALVES)), "x"(pairs));
  return as_floats(high);
}
template <int PART> AXIL_INLINE ActPart all_part(const Act* p) { return _mm256_broadcast_ss(p + PART); }
AXIL_INLINE Floats accumulate(Floats sum, Weights weights, ActPart x) { return fma(weights, x, sum); }

#endif

// Give `body` the vectors of a row: whole ones in place, the rest through a padded copy.
template <class Body>
AXIL_INLINE void in_vectors(int64_t count, const Body& body) {
  int64_t d = 0;
  for (; d + LANES <= count; d += LANES) body(d, LANES);
  if (d < count) body(d, static_cast<int>(count - d));
}

template <class T>
AXIL_INLINE Floats load_some(const T* p, int count) {
  if (count == LANES) return load(p);
  T padded[LANES] = {};
  memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

AXIL_INLINE void store_some(float* p, Floats v, int count) {
  if (count == LANES) return store(p, v);
  float padded[LANES];
  store(padded, v);
  memcpy(p, padded, count * sizeof(float));
}

// One element of either type of storage, as a float, and back.
AXIL_INLINE float value(float x) { return x; }
AXIL_INLINE float value(Bf16 x) { return widened(x); }
AXIL_INLINE void put(float* p, float x) { *p = x; }
AXIL_INLINE void put(Bf16* p, float x) { *p = rounded(x); }

// e^x to about 1 ulp for x in [-87, 88]; below it is e^-87, which is 1e-38. NaN goes through. (Coefficients: Cephes.)
AXIL_INLINE Floats exponential(Floats x) {
  x = min(all(88.0f), max(all(-87.0f), x));  // NaN is kept where it is the second operand
  const Floats n = nearest(mul(x, all(1.44269504f)));
  Floats r = fnma(n, all(0.693359375f), x);
  r = fnma(n, all(-2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(mul(p, r), r, add(r, all(1.0f)));
  const Floats power = as_floats(shift_left<23>(add_ints(to_ints(n), all_ints(127))));
  return mul(p, power);
}
AXIL_INLINE float exponential(float x) {
  float lanes_of_x[LANES];
  store(lanes_of_x, exponential(all(x)));
  return lanes_of_x[0];
}

// 2^x to about 2 ulp for x in [-126, 127], and exactly 1 at 0; below it is 2^-126. NaN goes through. (Coefficients: least
// relative error on [-0.5, 0.5].)
AXIL_INLINE Floats power_of_two(Floats x) {
  x = max(all(-126.0f), x);  // NaN is kept where it is the second operand
  const Floats n = nearest(x), r = sub(x, n);
  Floats p = all(1.3264727247e-3f);
  p = fma(p, r, all(9.6715126881e-3f));
  p = fma(p, r, all(5.5507337436e-2f));
  p = fma(p, r, all(2.4022242085e-1f));
  p = fma(p, r, all(6.9314697760e-1f));
  p = fma(p, r, all(1.0f));
  return scaled(p, n);
}
AXIL_INLINE float power_of_two(float x) {
  float lanes_of_x[LANES];
  store(lanes_of_x, power_of_two(all(x)));
  return lanes_of_x[0];
}

AXIL_INLINE Floats sigmoid(Floats x) {
  const Floats e = exponential(sub(zeros(), abs(x)));
  const Floats numerator = choose(is_less(x, zeros()), e, all(1.0f));
  return mul(numerator, inverse(add(all(1.0f), e)));
}

AXIL_INLINE Floats hyperbolic_tangent(Floats x) { return fma(all(2.0f), sigmoid(add(x, x)), all(-1.0f)); }
