// The small vector vocabulary that the CPU kernels are written in: one struct V per instruction set, same names. A
// *_kernels.cpp file is compiled once per instruction set with TRANSCAST_ISA naming it; everything it defines lives in
// that namespace, so that no code built for a newer machine can be linked into the path of an older one.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/fp8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef TRANSCAST_ISA
#define TRANSCAST_ISA plain
#endif

namespace transcast::cpu::TRANSCAST_ISA {

#define TRANSCAST_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

struct V {
  static constexpr int lanes = 16;
  using F = __m512;
  using U = __m512i;
  TRANSCAST_INLINE F set(float v) { return _mm512_set1_ps(v); }
  TRANSCAST_INLINE U bits(uint32_t v) { return _mm512_set1_epi32(int(v)); }
  TRANSCAST_INLINE F load(F32, const uint32_t* p) { return _mm512_loadu_ps(p); }
  TRANSCAST_INLINE F load(BF16, const uint16_t* p) {
    return to_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  TRANSCAST_INLINE F load(F16, const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  TRANSCAST_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  TRANSCAST_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  TRANSCAST_INLINE void store_high_halves(uint16_t* p, F v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(shift_right<16>(to_bits(v))));
  }
  TRANSCAST_INLINE void stream(float* p, F v) { _mm512_stream_ps(p, v); }
  TRANSCAST_INLINE U to_bits(F v) { return _mm512_castps_si512(v); }
  TRANSCAST_INLINE F to_float(U v) { return _mm512_castsi512_ps(v); }
  TRANSCAST_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  TRANSCAST_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  TRANSCAST_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  TRANSCAST_INLINE U add(U a, U b) { return _mm512_add_epi32(a, b); }
  TRANSCAST_INLINE U and_(U a, U b) { return _mm512_and_si512(a, b); }
  TRANSCAST_INLINE U or_(U a, U b) { return _mm512_or_si512(a, b); }
  TRANSCAST_INLINE U and_not(U mask, U a) { return _mm512_andnot_si512(mask, a); }
  TRANSCAST_INLINE U min(U a, U b) { return _mm512_min_epu32(a, b); }
  TRANSCAST_INLINE U max(U a, U b) { return _mm512_max_epu32(a, b); }
  TRANSCAST_INLINE U greater(U a, U b) { return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(a, b)); }
  template <int n> TRANSCAST_INLINE U shift_right(U a) { return _mm512_srli_epi32(a, n); }
  TRANSCAST_INLINE uint32_t reduce_max(U a) { return _mm512_reduce_max_epu32(a); }
  TRANSCAST_INLINE float reduce_add(F a) { return _mm512_reduce_add_ps(a); }
  TRANSCAST_INLINE __m512i pack(U a, U b, U c, U d) {
    const __m256i ab = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a)),
                                               _mm512_cvtepi32_epi8(b), 1);
    const __m256i cd = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(c)),
                                               _mm512_cvtepi32_epi8(d), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(ab), cd, 1);
  }
  TRANSCAST_INLINE void store_bytes(uint8_t* p, U a, U b, U c, U d) { _mm512_storeu_si512(p, pack(a, b, c, d)); }
  // Codes reach FP32 through the half-precision converter: exact, and subnormals cost nothing there.
  TRANSCAST_INLINE F decode(E5M2, const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128((const __m128i*)p);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  }
  TRANSCAST_INLINE F decode(E4M3, const uint8_t* p) {
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), magnitude);
    const __m256i kept = _mm256_or_si256(_mm256_and_si256(half, _mm256_set1_epi16(short(0xbf80))), nan);
    return _mm512_mul_ps(_mm512_cvtph_ps(kept), _mm512_set1_ps(256.0f));
  }
  // float(code) * 2^-8 for codes that are no NaN: the bias of the half-precision exponent is left in.
  TRANSCAST_INLINE F decode_256th(const uint8_t* p) {
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16(short(0xbf80))));
  }
};

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct V {
  static constexpr int lanes = 8;
  using F = __m256;
  using U = __m256i;
  TRANSCAST_INLINE F set(float v) { return _mm256_set1_ps(v); }
  TRANSCAST_INLINE U bits(uint32_t v) { return _mm256_set1_epi32(int(v)); }
  TRANSCAST_INLINE F load(F32, const uint32_t* p) { return _mm256_loadu_ps((const float*)p); }
  TRANSCAST_INLINE F load(BF16, const uint16_t* p) {
    return to_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  TRANSCAST_INLINE F load(F16, const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  TRANSCAST_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  TRANSCAST_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  TRANSCAST_INLINE void store_high_halves(uint16_t* p, F v) {
    const U high = shift_right<16>(to_bits(v));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
  }
  TRANSCAST_INLINE void stream(float* p, F v) { _mm256_stream_ps(p, v); }
  TRANSCAST_INLINE U to_bits(F v) { return _mm256_castps_si256(v); }
  TRANSCAST_INLINE F to_float(U v) { return _mm256_castsi256_ps(v); }
  TRANSCAST_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  TRANSCAST_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  TRANSCAST_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  TRANSCAST_INLINE U add(U a, U b) { return _mm256_add_epi32(a, b); }
  TRANSCAST_INLINE U and_(U a, U b) { return _mm256_and_si256(a, b); }
  TRANSCAST_INLINE U or_(U a, U b) { return _mm256_or_si256(a, b); }
  TRANSCAST_INLINE U and_not(U mask, U a) { return _mm256_andnot_si256(mask, a); }
  TRANSCAST_INLINE U min(U a, U b) { return _mm256_min_epu32(a, b); }
  TRANSCAST_INLINE U max(U a, U b) { return _mm256_max_epu32(a, b); }
  TRANSCAST_INLINE U greater(U a, U b) { return _mm256_cmpgt_epi32(a, b); }
  template <int n> TRANSCAST_INLINE U shift_right(U a) { return _mm256_srli_epi32(a, n); }
  TRANSCAST_INLINE uint32_t reduce_max(U a) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return uint32_t(_mm_cvtsi128_si32(m));
  }
  TRANSCAST_INLINE float reduce_add(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  // The packs work within 128-bit lanes; the permutation puts the dwords back in order.
  TRANSCAST_INLINE __m256i pack(U a, U b, U c, U d) {
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  TRANSCAST_INLINE void store_bytes(uint8_t* p, U a, U b, U c, U d) {
    _mm256_storeu_si256((__m256i*)p, pack(a, b, c, d));
  }
  TRANSCAST_INLINE F decode(E5M2, const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p)), 8));
  }
  TRANSCAST_INLINE F decode(E4M3, const uint8_t* p) {
    const __m128i half = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p)), 7);
    const __m128i magnitude = _mm_set1_epi16(0x3f80);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, magnitude), magnitude);
    const __m128i kept = _mm_or_si128(_mm_and_si128(half, _mm_set1_epi16(short(0xbf80))), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(kept), _mm256_set1_ps(256.0f));
  }
  TRANSCAST_INLINE F decode_256th(const uint8_t* p) {
    const __m128i half = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(half, _mm_set1_epi16(short(0xbf80))));
  }
};

#else

// Half precision in integer arithmetic, for machines without a converter.
TRANSCAST_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | kInfBits | (magnitude & 0x3ffu) << 13);
  const bool subnormal = magnitude < 0x400u;
  const uint32_t bits = (magnitude << 13) + (113u << 23) - (subnormal ? 0u : 1u << 23);
  const float value = subnormal ? float_of(bits) - float_of(113u << 23) : float_of(bits);
  return float_of(bits_of(value) | sign);
}

struct V {
  static constexpr int lanes = 1;
  using F = float;
  struct U { uint32_t v; };
  TRANSCAST_INLINE F set(float v) { return v; }
  TRANSCAST_INLINE U bits(uint32_t v) { return {v}; }
  TRANSCAST_INLINE F load(F32, const uint32_t* p) { return float_of(*p); }
  TRANSCAST_INLINE F load(BF16, const uint16_t* p) { return float_of(uint32_t(*p) << 16); }
  TRANSCAST_INLINE F load(F16, const uint16_t* p) { return half_to_float(*p); }
  TRANSCAST_INLINE F load(const float* p) { return *p; }
  TRANSCAST_INLINE void store(float* p, F v) { *p = v; }
  TRANSCAST_INLINE void store_high_halves(uint16_t* p, F v) { *p = uint16_t(bits_of(v) >> 16); }
  TRANSCAST_INLINE void stream(float* p, F v) { *p = v; }
  TRANSCAST_INLINE U to_bits(F v) { return {bits_of(v)}; }
  TRANSCAST_INLINE F to_float(U v) { return float_of(v.v); }
  TRANSCAST_INLINE F mul(F a, F b) { return a * b; }
  TRANSCAST_INLINE F add(F a, F b) { return a + b; }
  TRANSCAST_INLINE F fma(F a, F b, F c) { return a * b + c; }
  TRANSCAST_INLINE U add(U a, U b) { return {a.v + b.v}; }
  TRANSCAST_INLINE U and_(U a, U b) { return {a.v & b.v}; }
  TRANSCAST_INLINE U or_(U a, U b) { return {a.v | b.v}; }
  TRANSCAST_INLINE U and_not(U mask, U a) { return {~mask.v & a.v}; }
  TRANSCAST_INLINE U min(U a, U b) { return a.v < b.v ? a : b; }
  TRANSCAST_INLINE U max(U a, U b) { return a.v > b.v ? a : b; }
  TRANSCAST_INLINE U greater(U a, U b) { return {int32_t(a.v) > int32_t(b.v) ? ~0u : 0u}; }
  template <int n> TRANSCAST_INLINE U shift_right(U a) { return {a.v >> n}; }
  TRANSCAST_INLINE uint32_t reduce_max(U a) { return a.v; }
  TRANSCAST_INLINE float reduce_add(F a) { return a; }
  TRANSCAST_INLINE void store_bytes(uint8_t* p, U a, U b, U c, U d) {
    p[0] = uint8_t(a.v), p[1] = uint8_t(b.v), p[2] = uint8_t(c.v), p[3] = uint8_t(d.v);
  }
  template <class Fp8> TRANSCAST_INLINE F decode(Fp8, const uint8_t* p) { return transcast::decode<Fp8>(*p); }
  TRANSCAST_INLINE F decode_256th(const uint8_t* p) { return transcast::decode<E4M3>(*p) * 0.00390625f; }
};

#endif

}  // namespace transcast::cpu::TRANSCAST_ISA
