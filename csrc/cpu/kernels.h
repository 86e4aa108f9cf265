// The table of vector kernels: one instance per instruction set, chosen once for the running machine. Kernels work on
// blocks that one thread handles; the files named after the ops split the work and call them.
#pragma once

#include <cstdint>

#include "backend.h"
#include "core/dtype.h"
#include "core/fp8.h"

namespace transcast::cpu {

// Outputs beyond this size are written around the caches. It counts most for transposes, whose lines lie a row apart,
// too many to stay until they are full: 13.7 ms against 26.3 for quantize_transpose on 4096x4096 BF16 (2026-11,
// AVX-512, one thread).
constexpr int64_t kStreamBytes = 4 << 20;

// One row of a GEMM's result on its way from accumulators to the output.
struct EpilogueRow {
  float* acc;  // [n], FP32 accumulators; overwritten
  float* y;    // [n], may be acc, and may be where `added` lies
  int64_t n;
  float a_scale_inv, b_scale_inv;
  const float* b_row_scale_inv;  // [n], in place of b_scale_inv; or null
  const float* added;            // previous output for accumulation, or null
  const float* bias;             // or null
};

// n elements on their way through an activation, all in FP32; what it does not need is null or not written.
struct ActPiece {
  const float *x, *up, *g;
  int64_t n;
  float* y[2];  // the value, or its gradient; for swiglu's gradient that of the gate, then that of up
};

struct Kernels {
  const char* name;
  bool bf16_arithmetic;  // BF16 products run faster than FP32 ones; without it BLAS would only convert them back

  // Largest |x| as FP32 bits, over n contiguous elements. [dtype]
  uint32_t (*amax[3])(const void* x, int64_t n);

  // q[r, c] = cast(x[r, c] * scale); returns the amax bits of x. [dtype][format]
  uint32_t (*encode[3][2])(const void* x, int64_t x_stride, int64_t rows, int64_t cols, float scale, uint8_t* q,
                           int64_t q_stride);

  // out[c, r] = in[r, c] for rows a multiple of 16; `in` is readable up to the next multiple of 16 columns. stream:
  // bypass the caches where alignment allows.
  void (*transpose)(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out,
                    int64_t out_stride, bool stream);

  // out[r, c] = in[r, c], bypassing the caches where alignment allows.
  void (*stream_copy)(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out,
                      int64_t out_stride);

  // sums[c] += x[r, c], row after row. [dtype]
  void (*add_rows[3])(const void* x, int64_t x_stride, int64_t rows, int64_t cols, float* sums);

  // y[i] = float(q[i]) * scale. [format]
  void (*decode[2])(const uint8_t* q, int64_t n, float scale, float* y, bool stream);

  // y[i] = bf16(q[i]), which is exact. [format]
  void (*decode_bf16[2])(const uint8_t* q, int64_t n, uint16_t* y);

  // out[r] = dot(w[r, :], x) for up to 4 rows. [format]
  void (*dot[2])(const uint8_t* w, int64_t w_stride, int rows, const float* x, int64_t k, float* out);

  // FP32 <-> FP32, BF16, FP16 (round to nearest even). [dtype]
  void (*widen[3])(const void* x, int64_t n, float* y);
  void (*narrow[3])(const float* x, int64_t n, void* y);

  // y = (acc * a_scale_inv) * b_scale_inv (+ added) (+ bias)
  void (*scale_and_bias)(const EpilogueRow&);
  void (*relu)(float* x, int64_t n);
  void (*gelu_tanh)(float* x, int64_t n);
  void (*dgelu)(float* x, const float* aux, int64_t n);  // x *= gelu_tanh'(aux)

  // Activations and their gradients, as CastArgs defines them. [act], none is empty
  void (*act[4])(const ActPiece&);
  void (*dact[4])(const ActPiece&);
};

// The kernels of the newest instruction set that both the build and this machine have. TRANSCAST_CPU_ISA=plain, avx2
// or avx512 in the environment makes another choice (read once; tests use it); what is not there is refused.
const Kernels& kernels();

// Names of the sets in this build, oldest first, separated by commas.
const char* compiled_isas();

// Each *_kernels.cpp fills its part of the table, once per instruction set.
#define TRANSCAST_DECLARE_ISA(isa) \
  namespace isa {                  \
  void fill_cast(Kernels&);        \
  void fill_transpose(Kernels&);   \
  void fill_decode(Kernels&);      \
  void fill_epilogue(Kernels&);    \
  void fill_act(Kernels&);         \
  }
TRANSCAST_DECLARE_ISA(plain)
TRANSCAST_DECLARE_ISA(avx2)
TRANSCAST_DECLARE_ISA(avx512)
#undef TRANSCAST_DECLARE_ISA

}  // namespace transcast::cpu
