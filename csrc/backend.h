// The contract between ops/ and a backend: plain argument structs and the functions that each backend defines. No
// torch here. ops/ has checked every argument and allocated every output before a backend function is called; what is
// left to fail is memory for workspaces.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/fp8.h"

namespace transcast {

// What the CPU backend gets from its caller: torch's own thread pool and BLAS, so that thread settings are honoured and
// no second runtime is loaded.
struct CpuContext {
  using Range = void (*)(int64_t begin, int64_t end, void* state);
  // Calls range on disjoint pieces that cover [0, n), on one thread if n <= grain.
  void (*parallel_for)(int64_t n, int64_t grain, Range range, void* state);
  int (*threads)();  // how many parallel_for may use
  // c[m, n] (row stride ldc) = a[m, k] (lda) * b[n, k]^T (ldb) + (accumulate ? c : 0), FP32, row-major.
  void (*sgemm)(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                bool accumulate, float* c, int64_t ldc);
  // The same with BF16 operands and FP32 accumulation, or null. Every FP8 value is a BF16 value: the same products.
  void (*bf16_gemm)(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                    bool accumulate, float* c, int64_t ldc);
};

// What the CUDA backend gets: the device (already current), torch's stream on it, and memory.
struct CudaContext {
  int device;
  void* stream;  // cudaStream_t
  // Device memory that lives until the op returns and is reused in stream order afterwards: torch's caching allocator.
  void* (*allocate)(int64_t bytes, void* state);
  void* state;
};

// One library holds one backend.
#if defined(TRANSCAST_CUDA_BACKEND)
using Context = CudaContext;
#else
using Context = CpuContext;
#endif

// High-precision matrix: element (r, c) is data[r * stride + c].
struct Matrix {
  const void* data;
  DType dtype;
  int64_t rows, cols, stride;
};

// FP8 matrix, same addressing.
struct Codes {
  const uint8_t* data;
  Format format;
  int64_t rows, cols, stride;
};

struct AmaxArgs {
  Matrix x;
  float* amax;  // [1]
};
void amax(const Context&, const AmaxArgs&);

// What is done to x before it is cast.
enum class Act : int { none, gelu_tanh, silu, swiglu };

// What every quantizing op reads and writes. Null outputs are not computed. With `act` the value that is cast is
//   act(x), or silu(x) * up for swiglu, [rows, cols];
// and if there is a gradient g, the gradient of that:
//   g * act'(x), or for swiglu both gradients side by side, [rows, 2 cols]: (g * silu'(x)) * up | g * silu(x).
// x, up and g share their dtype and shape. All of it in FP32, with core/act.h's sequence of operations.
struct CastArgs {
  Matrix x;
  Format format;
  uint8_t* q;        // [rows, out_cols()]
  uint8_t* q_t;      // [out_cols(), round_up(rows, 16)], padding zeroed; or null
  float* dbias;      // [out_cols()], column sums of what is cast, before scaling; or null
  float* scale_inv;    // [1]
  float* scale_inv_t;  // [1], belongs to q_t; or null
  Act act;
  Matrix up;      // swiglu only
  bool gradient;  // g is there
  Matrix g;

  int64_t out_cols() const { return gradient && act == Act::swiglu ? 2 * x.cols : x.cols; }
};
// The scale is given; amax [1] of the unscaled data comes out.
void cast(const Context&, const CastArgs&, const float* scale, float* amax);
// Current scaling: the scale is made from the data's own amax.
void quantize(const Context&, const CastArgs&, ScaleRule);
// quantize for each of n matrices, none of them with act or dbias.
void multi_quantize(const Context&, const CastArgs*, int64_t n, ScaleRule);

struct DequantizeArgs {
  Codes q;
  const float* scale_inv;  // [1]
  void* y;                 // [rows, cols]
  DType dtype;
};
void dequantize(const Context&, const DequantizeArgs&);

struct TransposeArgs {
  Codes q;
  uint8_t* q_t;  // [cols, round_up(rows, 16)], padding zeroed
};
void transpose(const Context&, const TransposeArgs&);

enum class Epilogue : int { none, relu, gelu_tanh, dgelu };

constexpr int64_t kBlock = 128, kMxBlock = 32;

// What an operand's inverse scales belong to: all of it, a row, a block of 1x128 or 128x128, or one of 1x32 (E8M0).
enum class Scaling : int { tensor, row, block_1x128, block_128x128, mx_1x32 };

// Scale (i, j) is data[i * row_stride + j * col_stride]: one FP32 number, [rows, 1], [rows, ceil(K / 128)] or
// [ceil(rows / 128), ceil(K / 128)] of them; for mx_1x32 [rows, ceil(K / 32)] bytes. Strides may be 0.
struct InverseScales {
  const void* data;
  Scaling scaling;
  int64_t rows, cols;
  int64_t row_stride, col_stride;
};

// D[M, N] = epilogue((a * b^T * a_scale_inv) * b_scale_inv + (accumulate ? D : 0) + bias)
struct GemmArgs {
  Codes a, b;  // [M, K], [N, K]
  // Both tensor, both row, both mx_1x32, or both blocks of 128 columns and not both of 128 rows.
  InverseScales a_scale_inv, b_scale_inv;
  const void* bias;                        // [N], or null
  DType bias_dtype;
  DType bias_rounding;  // the dtype that FP8 tensor cores take a bias in for this output: values are rounded to it
  Epilogue epilogue;
  const void* aux;  // dgelu: the saved pre-activation, [M, N], row stride aux_stride; or null
  void* aux_out;    // gelu_tanh: receives the pre-activation; or null
  DType aux_dtype;
  int64_t aux_stride;
  bool fast_accum;  // tensor cores may keep fewer accumulator bits; the CPU has no use for it
};
void gemm(const Context&, const GemmArgs&, void* out, DType out_dtype, int64_t out_stride, bool accumulate);
// FP8 output q [M, N] = cast(D * out_scale); amax [1] of D; scale_inv [1] is NaN where amax is not finite.
void gemm_fp8(const Context&, const GemmArgs&, const float* out_scale, Format, uint8_t* q, float* scale_inv,
              float* amax);

}  // namespace transcast
