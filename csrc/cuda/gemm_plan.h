// cuBLASLt products: descriptors built once, the heuristic asked once, and then only pointers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gemm_support.h"
#include "cuda/state.h"

namespace transcast::cuda {

// One cublasLtMatmul: d[M, N] = epilogue(a[M, K] * b[N, K]^T * a_scale_inv * b_scale_inv (+ d) (+ bias)). Row-major;
// pointers are 16-byte aligned, a_stride, b_stride, K and N multiples of 16, rows of d and aux of 16 bytes; for blocks
// of 128 columns M is a multiple of 4, for those of 32 K is one of 32.
struct Product {
  Request request;
  int64_t m, n, k;
  const uint8_t *a, *b;
  int64_t a_stride, b_stride;
  const void *a_scale_inv, *b_scale_inv;  // as the library lays them out (cuda/gemm_scales.h); or null: 1
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

// Runs it on the context's stream. False if cuBLASLt has no algorithm for it; throws on any other failure.
bool run(const CudaContext&, const Product&);

// What one plan is and did.
struct PlanFacts {
  int device;
  std::string description;  // the whole descriptor in one line
  int candidates, chosen;   // chosen: -1 if cuBLASLt has no algorithm
  int64_t workspace_bytes, calls;
};
std::vector<PlanFacts> plans();  // most recently used first
void clear_plans();

// The descriptor of a product in one line, for errors and plans.
std::string describe(const Product&);

// Of cuBLASLt: what is loaded, or what this was built with if that is older.
int library_version();

}  // namespace transcast::cuda
