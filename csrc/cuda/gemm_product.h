// What one cublasLtMatmul is to compute, and what of that a plan depends on.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cuda/gemm_support.h"

namespace transcast::cuda {

// One cublasLtMatmul: d[M, N] = epilogue(a[M, K] * b[N, K]^T * a_scale_inv * b_scale_inv (+ d) (+ bias)). Row-major;
// pointers are 16-byte aligned, a_stride, b_stride, K and N multiples of 16, rows of d and aux of 16 bytes; for blocks
// of 128 columns M is a multiple of 4, for those of 32 K is one of 32.
struct Product {
  Request request;
  int64_t m, n, k;
  const uint8_t *a, *b;
  int64_t a_stride, b_stride;
  const void *a_scale_inv, *b_scale_inv;  // as the library lays them out (cuda/gemm_operands.h); or null: 1
  void* d;
  int64_t d_stride;
  const void* bias;  // [N], of bias_dtype; or null
  DType bias_dtype;
  void* aux;  // or null
  int64_t aux_stride;
  const float* d_scale;  // FP8 output; else null
  float* d_amax;
  bool fast_accum, accumulate;
  bool followed;  // by a kernel that does what the library leaves to it
};

// The descriptor of a product in one line, for errors and plans.
std::string describe(const Product&);

// 16, 32, ... 256: what the pointer is a multiple of, as far as the library cares.
uint32_t alignment_of(const void*);

// Everything that a plan depends on. All fields have one size, so that there is no padding to compare.
struct Key {
  std::array<int64_t, 28> fields;
  bool operator==(const Key& other) const { return fields == other.fields; }
};

Key key_of(int device, const Product&);

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over words
    for (int64_t field : key.fields) hash = (hash ^ uint64_t(field)) * 0x100000001b3u;
    return size_t(hash ^ hash >> 29);
  }
};

}  // namespace transcast::cuda
