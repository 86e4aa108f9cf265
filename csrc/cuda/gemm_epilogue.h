// What a GEMM leaves to kernels of ours: the way from accumulators to the output, and what completes an FP8 output.
#pragma once

#include "cuda/state.h"

namespace transcast::cuda {

// From FP32 accumulators to the output, where cuBLASLt has no such epilogue.
struct EpilogueArgs {
  const float* acc;  // [M, N], row stride acc_stride; null: zero, the product of operands without columns
  int64_t acc_stride;
  const GemmArgs* gemm;  // bias, epilogue, aux
  bool by_row;           // acc is still in units of the codes, and gemm has the row scales
  void* out;             // [M, N]; not read by epilogue_fp8
  DType out_dtype;
  int64_t out_stride;
  bool accumulate;
};
void epilogue(const CudaContext&, const EpilogueArgs&);
// The same into FP8: q [M, N] contiguous.
void epilogue_fp8(const CudaContext&, const EpilogueArgs&, const float* out_scale, Format, uint8_t* q, float* scale_inv,
                  float* amax);

// What cuBLASLt leaves to do beside its FP8 output q: scale_inv and a canonical amax, from the library's own. What that
// makes of a NaN is not documented, so q is searched for one. q: 16-byte aligned, gapless, its columns a multiple
// of 16.
void finish_fp8(const CudaContext&, const Codes& q, float* library_amax, const float* out_scale, float* scale_inv,
                float* amax);

}  // namespace transcast::cuda
