// The AVX-512 instructions that the kernels use, in plain C, so that their 16 lanes run on a CPU with AVX2.
//
// Lanes are computed one by one, as Intel's intrinsics guide describes each instruction; `vdpbf16ps` adds a pair's products
// one after the other and keeps subnormal numbers, where the CPU may not.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#define __AVX512BF16__ 1
#define __AVX512VNNI__ 1
#define __AVX512VBMI__ 1

namespace plain {

template <class Element>
struct Of {  // what a vector is, as an array
  Element at[64 / sizeof(Element)];
};
template <class Element, class Vector>
inline Of<Element> of(const Vector& v) {
  static_assert(sizeof(Vector) <= 64, "a vector");
  Of<Element> lanes{};
  memcpy(&lanes, &v, sizeof(v));
  return lanes;
}
template <class Vector, class Element>
inline Vector as(const Of<Element>& lanes) {
  Vector v;
  memcpy(&v, &lanes, sizeof(v));
  return v;
}

// out[i] = of_lane(i) for every lane of the result.
template <class Vector, class Element, class OfLane>
inline Vector make(const OfLane& of_lane) {
  Of<Element> out{};
  for (size_t i = 0; i < sizeof(Vector) / sizeof(Element); i++) out.at[i] = static_cast<Element>(of_lane(i));
  return as<Vector>(out);
}
template <class OfLane> inline __m512 floats(const OfLane& f) { return make<__m512, float>(f); }
template <class OfLane> inline __m512i ints(const OfLane& f) { return make<__m512i, int32_t>(f); }
template <class OfLane> inline __mmask16 mask(const OfLane& f) {
  unsigned bits = 0;
  for (int i = 0; i < 16; i++) bits |= (f(i) ? 1u : 0u) << i;
  return static_cast<__mmask16>(bits);
}
inline float widened(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}
inline uint16_t rounded(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float sum(const __m512& v) {
  Of<float> lanes = of<float>(v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes.at[i] += lanes.at[i + half];
  return lanes.at[0];
}
inline float largest(const __m512& v) {
  const Of<float> lanes = of<float>(v);
  float most = lanes.at[0];
  for (float lane : lanes.at) most = most > lane ? most : lane;
  return most;
}
inline int32_t sum_ints(const __m512i& v) {
  uint32_t total = 0;
  for (uint32_t lane : of<uint32_t>(v).at) total += lane;
  return static_cast<int32_t>(total);
}
inline __m512i shuffled(const __m512i& v, const __m512i& order) {
  const Of<uint8_t> from = of<uint8_t>(v), at = of<uint8_t>(order);
  return make<__m512i, uint8_t>([&](size_t i) { return at.at[i] & 128 ? 0 : from.at[i / 16 * 16 + (at.at[i] & 15)]; });
}
inline __m512i looked_up(const __m512i& a, const __m512i& order, const __m512i& b) {
  const Of<uint8_t> first = of<uint8_t>(a), at = of<uint8_t>(order), second = of<uint8_t>(b);
  return make<__m512i, uint8_t>([&](size_t i) { return (at.at[i] & 64 ? second : first).at[at.at[i] & 63]; });
}
// Bytes of both by turns, in every 16 from `first` on.
inline __m512i unpacked(const __m512i& a, const __m512i& b, size_t first) {
  const Of<uint8_t> x = of<uint8_t>(a), y = of<uint8_t>(b);
  return make<__m512i, uint8_t>([&](size_t i) { return (i % 2 ? y : x).at[i / 16 * 16 + first + i % 16 / 2]; });
}
inline __m512i of_three(const __m512i& a, const __m512i& b, const __m512i& c, uint32_t function) {
  const Of<uint32_t> x = of<uint32_t>(a), y = of<uint32_t>(b), z = of<uint32_t>(c);
  return ints([&](size_t i) {
    uint32_t bits = 0;
    for (int k = 0; k < 32; k++)
      bits |= (function >> ((x.at[i] >> k & 1) << 2 | (y.at[i] >> k & 1) << 1 | (z.at[i] >> k & 1)) & 1) << k;
    return static_cast<int32_t>(bits);
  });
}
inline __m512 add_pairs(const __m512& so_far, const __m512i& a, const __m512i& b) {
  const Of<float> to = of<float>(so_far);
  const Of<uint16_t> x = of<uint16_t>(a), y = of<uint16_t>(b);
  return floats([&](size_t i) {
    const float first = std::fma(widened(x.at[2 * i]), widened(y.at[2 * i]), to.at[i]);
    return std::fma(widened(x.at[2 * i + 1]), widened(y.at[2 * i + 1]), first);
  });
}
inline __m512i add_quads(const __m512i& so_far, const __m512i& a, const __m512i& b) {
  const Of<int32_t> to = of<int32_t>(so_far);
  const Of<uint8_t> x = of<uint8_t>(a);
  const Of<int8_t> y = of<int8_t>(b);
  return ints([&](size_t i) {
    int32_t total = to.at[i];
    for (size_t k = 4 * i; k < 4 * i + 4; k++) total += x.at[k] * y.at[k];
    return total;
  });
}
template <class Function>
inline __m512 both(const __m512& a, const __m512& b, const Function& f) {
  const Of<float> x = of<float>(a), y = of<float>(b);
  return floats([&](size_t i) { return f(x.at[i], y.at[i]); });
}
inline __m512 fma(const __m512& a, const __m512& b, const __m512& c, float sign) {
  const Of<float> x = of<float>(a), y = of<float>(b), z = of<float>(c);
  return floats([&](size_t i) { return std::fma(sign * x.at[i], y.at[i], z.at[i]); });
}

}  // namespace plain

#define _mm512_setzero_ps() (__m512{})
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_set1_ps(x) plain::floats([&](size_t) { return x; })
#define _mm512_set1_epi32(x) plain::ints([&](size_t) { return x; })
#undef _mm512_setr4_epi32
#define _mm512_setr4_epi32(a, b, c, d) plain::ints([&](size_t i) { return i % 4 == 0 ? a : i % 4 == 1 ? b : i % 4 == 2 ? c : d; })
#define _mm512_loadu_ps(p) plain::floats([&](size_t i) { return (p)[i]; })
#define _mm512_storeu_ps(p, v) memcpy(p, &(v), 64)
#define _mm512_loadu_si512(p) plain::make<__m512i, uint8_t>([&](size_t i) { return static_cast<const uint8_t*>(static_cast<const void*>(p))[i]; })
#define _mm512_storeu_si512(p, v) memcpy(p, &(v), 64)
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_div_ps(a, b) ((a) / (b))
#define _mm512_rcp14_ps(a) (plain::floats([&](size_t) { return 1.0f; }) / (a))
#define _mm512_fmadd_ps(a, b, c) plain::fma(a, b, c, 1.0f)
#define _mm512_fnmadd_ps(a, b, c) plain::fma(a, b, c, -1.0f)
#define _mm512_max_ps(a, b) plain::both(a, b, [](float x, float y) { return x > y ? x : y; })
#define _mm512_min_ps(a, b) plain::both(a, b, [](float x, float y) { return x < y ? x : y; })
#define _mm512_abs_ps(a) plain::both(a, a, [](float x, float) { return std::fabs(x); })
#define _mm512_roundscale_ps(a, mode) plain::both(a, a, [](float x, float) { return std::nearbyint(x); })
#define _mm512_cvtps_epi32(a) plain::ints([x = plain::of<float>(a)](size_t i) { return _mm_cvtss_si32(_mm_set_ss(x.at[i])); })
#define _mm512_cvtepi32_ps(a) plain::floats([x = plain::of<int32_t>(a)](size_t i) { return x.at[i]; })
#define _mm512_add_epi32(a, b) plain::ints([x = plain::of<uint32_t>(a), y = plain::of<uint32_t>(b)](size_t i) { return x.at[i] + y.at[i]; })
#define _mm512_sub_epi32(a, b) plain::ints([x = plain::of<uint32_t>(a), y = plain::of<uint32_t>(b)](size_t i) { return x.at[i] - y.at[i]; })
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_ternarylogic_epi32(a, b, c, function) plain::of_three(a, b, c, function)
#define _mm512_permute_ps(a, order) plain::floats([x = plain::of<float>(a)](size_t i) { return x.at[i / 4 * 4 + ((order) >> i % 4 * 2 & 3)]; })
#define _mm512_shuffle_f32x4(a, b, order) plain::floats([x = plain::of<float>(a), y = plain::of<float>(b)](size_t i) { return (i < 8 ? x : y).at[((order) >> i / 4 * 2 & 3) * 4 + i % 4]; })
#define _mm512_permutexvar_epi16(order, a) plain::make<__m512i, uint16_t>([x = plain::of<uint16_t>(a), at = plain::of<uint16_t>(order)](size_t i) { return x.at[at.at[i] & 31]; })
#define _mm512_permutex2var_epi8(a, order, b) plain::looked_up(a, order, b)
#define _mm512_unpacklo_epi8(a, b) plain::unpacked(a, b, 0)
#define _mm512_unpackhi_epi8(a, b) plain::unpacked(a, b, 8)
#define _mm512_slli_epi32(a, n) plain::ints([x = plain::of<uint32_t>(a)](size_t i) { return x.at[i] << (n); })
#define _mm512_srli_epi32(a, n) plain::ints([x = plain::of<uint32_t>(a)](size_t i) { return x.at[i] >> (n); })
#define _mm512_scalef_ps(a, n) plain::both(a, n, [](float x, float y) { return std::isnan(y) ? y : std::ldexp(x, static_cast<int>(y)); })
#define _mm512_castsi512_ps(a) ((__m512)(a))
#define _mm512_castps_si512(a) ((__m512i)(a))
#define _mm512_reduce_add_ps(a) plain::sum(a)
#define _mm512_reduce_max_ps(a) plain::largest(a)
#define _mm512_reduce_add_epi32(a) plain::sum_ints(a)
#define _mm512_cmp_ps_mask(a, b, is_less) plain::mask([x = plain::of<float>(a), y = plain::of<float>(b)](size_t i) { return x.at[i] < y.at[i]; })
#define _mm512_mask_blend_ps(m, a, b) plain::floats([x = plain::of<float>(a), y = plain::of<float>(b), bits = (m)](size_t i) { return bits >> i & 1 ? y.at[i] : x.at[i]; })
#define _mm512_cvtepu16_epi32(a) plain::ints([x = plain::of<uint16_t>(a)](size_t i) { return x.at[i]; })
#define _mm512_cvtneps_pbh(a) plain::make<__m256bh, uint16_t>([x = plain::of<float>(a)](size_t i) { return plain::rounded(x.at[i]); })
#define _mm512_cvtph_ps(a) plain::floats([x = plain::of<uint16_t>(a)](size_t i) { return _cvtsh_ss(x.at[i]); })
#define _mm512_cvtepi32_epi8(a) plain::make<__m128i, int8_t>([x = plain::of<int32_t>(a)](size_t i) { return x.at[i]; })
#define _mm512_shuffle_epi8(a, order) plain::shuffled(a, order)
#define _mm512_dpbf16_ps(sum, a, b) plain::add_pairs(sum, (__m512i)(a), (__m512i)(b))
#define _mm512_dpbusd_epi32(sum, a, b) plain::add_quads(sum, a, b)
