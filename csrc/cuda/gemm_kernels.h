// What a GEMM needs besides cuBLASLt, on operands and results in device memory.
#pragma once

#include "cuda/state.h"

namespace transcast::cuda {

// A copy with rows and columns padded by zeros to multiples of 16, in workspace memory.
Codes padded(const CudaContext&, const Codes&);

// From FP32 accumulators to the output, where cuBLASLt has no such epilogue.
struct EpilogueArgs {
  const float* acc;  // [M, N], row stride acc_stride; null: zero, the product of operands without columns
  int64_t acc_stride;
  const float *a_scale_inv, *b_scale_inv;  // applied to acc, [1] or one per row; or null: acc is scaled already
  bool scale_per_row;
  const GemmArgs* gemm;  // bias, epilogue, aux
  void* out;             // [M, N]
  DType out_dtype;
  int64_t out_stride;
  bool accumulate;
};
void epilogue(const CudaContext&, const EpilogueArgs&);
// The same into FP8: q [M, N] contiguous.
void epilogue_fp8(const CudaContext&, const EpilogueArgs&, const float* out_scale, Format, uint8_t* q, float* scale_inv,
                  float* amax);

// What cuBLASLt leaves to do beside its FP8 output: a canonical amax, and the scale_inv that belongs to it.
void finish_fp8(const CudaContext&, const float* out_scale, float* amax, float* scale_inv);

// A bias in the dtype that cuBLASLt adds, in workspace memory.
const void* rounded_bias(const CudaContext&, const GemmArgs&);

}  // namespace transcast::cuda
