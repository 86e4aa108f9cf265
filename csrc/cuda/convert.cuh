// Values in registers: raw words <-> FP32 <-> FP8 codes, and bytes moved inside words.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "core/fp8.h"

namespace transcast::cuda {

template <class T>
constexpr int kElementBytes = int(sizeof(typename T::storage));

// Eight elements as loaded: one 16-byte chunk of a 16-bit type, two of FP32.
template <class T>
struct Chunks {
  static constexpr int kCount = kElementBytes<T> / 2;
  static constexpr int kElements = 8 / kCount;  // per chunk
  uint4 chunk[kCount];
};

__device__ __forceinline__ float half_to_float(uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

template <class T>
__device__ __forceinline__ void widen(const Chunks<T>& raw, float (&v)[8]) {
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) {
    const uint32_t words[4] = {raw.chunk[c].x, raw.chunk[c].y, raw.chunk[c].z, raw.chunk[c].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (T::dtype == DType::f32) {
        v[4 * c + w] = float_of(words[w]);
      } else if constexpr (T::dtype == DType::bf16) {
        v[2 * w] = float_of(words[w] << 16);
        v[2 * w + 1] = float_of(words[w] & 0xffff0000u);
      } else {
        v[2 * w] = half_to_float(uint16_t(words[w]));
        v[2 * w + 1] = half_to_float(uint16_t(words[w] >> 16));
      }
    }
  }
}

// Two values rounded to T; the first one lies lower in memory.
template <class T>
__device__ __forceinline__ uint32_t narrow2(float first, float second) {
  if constexpr (T::dtype == DType::bf16) {
    const __nv_bfloat162_raw pair = __floats2bfloat162_rn(first, second);
    return pair.x | uint32_t(pair.y) << 16;
  } else {
    const __half2_raw pair = __floats2half2_rn(first, second);
    return pair.x | uint32_t(pair.y) << 16;
  }
}

template <class Fp8>
constexpr __nv_fp8_interpretation_t kInterpretation = Fp8::format == Format::e4m3 ? __NV_E4M3 : __NV_E5M2;

// Round to nearest even; overflow and Inf to +-max, NaN to 0x7F.
template <class Fp8>
__device__ __forceinline__ uint32_t encode2(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kInterpretation<Fp8>);
}

template <class Fp8>
__device__ __forceinline__ void encode8(const float (&v)[8], float scale, uint32_t (&codes)[2]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    codes[w] = encode2<Fp8>(v[4 * w] * scale, v[4 * w + 1] * scale) |
               encode2<Fp8>(v[4 * w + 2] * scale, v[4 * w + 3] * scale) << 16;
  }
}

// A format that is known at run time: one kernel for both, where arithmetic takes longer than a branch.
struct EitherFormat {};

template <class Fp8>
__device__ __forceinline__ void encode8(const float (&v)[8], float scale, Format format, uint32_t (&codes)[2]) {
  if constexpr (!std::is_same_v<Fp8, EitherFormat>) {
    encode8<Fp8>(v, scale, codes);
  } else if (format == Format::e4m3) {
    encode8<E4M3>(v, scale, codes);
  } else {
    encode8<E5M2>(v, scale, codes);
  }
}

// Four codes to FP32; every FP8 value is an FP16 value.
template <class Fp8>
__device__ __forceinline__ void decode4(uint32_t codes, float (&v)[4]) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const __half2_raw halves =
        __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(codes >> (16 * pair)), kInterpretation<Fp8>);
    v[2 * pair] = half_to_float(halves.x);
    v[2 * pair + 1] = half_to_float(halves.y);
  }
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Bits of |v| compare like integers, and NaN lies above Inf: nothing is lost, as it would be with fmaxf.
__device__ __forceinline__ uint32_t amax_of(const float (&v)[8], uint32_t amax) {
#pragma unroll
  for (int e = 0; e < 8; ++e) amax = larger(amax, bits_of(v[e]) & 0x7fffffffu);
  return amax;
}

// 16 bytes from byte `shift` (0..15) of the 32 bytes low, high.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t shift) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
  const uint32_t bytes = 0x3210u + 0x1111u * (shift & 3);
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __byte_perm(w[i], w[i + 1], bytes);
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// The first `count` bytes of a chunk, zeros after them.
__device__ __forceinline__ uint4 first_bytes(uint4 chunk, int count) {
  uint32_t w[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = count - 4 * i;
    w[i] = left >= 4 ? w[i] : left <= 0 ? 0u : w[i] & ((1u << (8 * left)) - 1u);
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Four rows of four bytes to four columns.
__device__ __forceinline__ void transpose4x4(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
  const uint32_t ab_low = __byte_perm(rows[0], rows[1], 0x5140), cd_low = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t ab_high = __byte_perm(rows[0], rows[1], 0x7362), cd_high = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(ab_low, cd_low, 0x5410);
  columns[1] = __byte_perm(ab_low, cd_low, 0x7632);
  columns[2] = __byte_perm(ab_high, cd_high, 0x5410);
  columns[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

}  // namespace transcast::cuda
