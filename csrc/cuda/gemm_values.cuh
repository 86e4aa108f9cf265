// Values of any high-precision dtype, one by one or eight at once: kernels around a GEMM know their dtypes at run time.
#pragma once

#include "cuda/convert.cuh"
#include "cuda/vec.cuh"

namespace transcast::cuda {

__device__ __forceinline__ float widened(DType dtype, uint16_t bits) {
  return dtype == DType::bf16 ? float_of(uint32_t(bits) << 16) : half_to_float(bits);
}

__device__ __forceinline__ float load(Global<const uint8_t> data, DType dtype, int64_t i, bool ok) {
  if (dtype == DType::f32) return float_of(ldg((data + 4 * i).as<const uint32_t>(), ok));
  return widened(dtype, ldg((data + 2 * i).as<const uint16_t>(), ok));
}

__device__ __forceinline__ uint16_t narrow(DType dtype, float value) {
  return uint16_t(dtype == DType::bf16 ? narrow2<BF16>(value, 0.0f) : narrow2<F16>(value, 0.0f));
}

__device__ __forceinline__ void store(Global<uint8_t> data, DType dtype, int64_t i, float value, bool ok) {
  if (dtype == DType::f32) {
    stg((data + 4 * i).as<uint32_t>(), bits_of(value), ok);
  } else {
    stg((data + 2 * i).as<uint16_t>(), narrow(dtype, value), ok);
  }
}

// ---- eight of them, `valid` of which are there; `whole`: all or none, on 16 bytes

template <class T>
__device__ __forceinline__ void load_chunks(Global<const uint8_t> data, bool ok, float (&v)[8]) {
  Chunks<T> raw;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) raw.chunk[c] = ldg((data + 16 * c).as<const uint4>(), ok);
  widen(raw, v);
}

__device__ __forceinline__ void load8(Global<const uint8_t> data, DType dtype, int64_t i, int valid, bool whole,
                                      float (&v)[8]) {
  if (!whole) {
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = load(data, dtype, i + e, e < valid);
  } else if (dtype == DType::f32) {
    load_chunks<F32>(data + 4 * i, valid > 0, v);
  } else if (dtype == DType::bf16) {
    load_chunks<BF16>(data + 2 * i, valid > 0, v);
  } else {
    load_chunks<F16>(data + 2 * i, valid > 0, v);
  }
}

__device__ __forceinline__ void store8(Global<uint8_t> data, DType dtype, int64_t i, const float (&v)[8], int valid,
                                       bool whole) {
  if (!whole) {
#pragma unroll
    for (int e = 0; e < 8; ++e) store(data, dtype, i + e, v[e], e < valid);
    return;
  }
  const bool ok = valid > 0;
  if (dtype == DType::f32) {
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
      const uint4 chunk = make_uint4(bits_of(v[c]), bits_of(v[c + 1]), bits_of(v[c + 2]), bits_of(v[c + 3]));
      stg((data + 4 * (i + c)).as<uint4>(), chunk, ok);
    }
    return;
  }
  uint32_t pair[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float first = v[2 * p], second = v[2 * p + 1];
    pair[p] = dtype == DType::bf16 ? narrow2<BF16>(first, second) : narrow2<F16>(first, second);
  }
  stg((data + 2 * i).as<uint4>(), make_uint4(pair[0], pair[1], pair[2], pair[3]), ok);
}

}  // namespace transcast::cuda
