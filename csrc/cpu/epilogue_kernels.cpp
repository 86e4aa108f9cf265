// What happens to a row of GEMM accumulators, and conversions between FP32 and 16-bit rows. Plain loops over
// branch-free scalar code, which compilers vectorize. Compiled once per instruction set (see simd.h).
#include "core/act.h"
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace transcast::cpu::TRANSCAST_ISA {
namespace {

void scale_and_bias(const EpilogueRow& row) {
  const float a = row.a_scale_inv, b = row.b_scale_inv;
  float* const scaled = row.added ? row.acc : row.y;  // y may be where `added` lies
  if (row.b_row_scale_inv) {
    for (int64_t i = 0; i < row.n; ++i) scaled[i] = (row.acc[i] * a) * row.b_row_scale_inv[i];
  } else {
    for (int64_t i = 0; i < row.n; ++i) scaled[i] = (row.acc[i] * a) * b;
  }
  if (row.added) {
    for (int64_t i = 0; i < row.n; ++i) row.y[i] = scaled[i] + row.added[i];
  }
  if (row.bias) {
    for (int64_t i = 0; i < row.n; ++i) row.y[i] += row.bias[i];
  }
}

// x < 0 is false for NaN: relu(NaN) = NaN.
void relu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
}

void gelu_tanh(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = transcast::gelu_tanh(x[i]);
}

void dgelu(float* x, const float* aux, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= transcast::dgelu_tanh(aux[i]);
}

template <class T>
void widen(const void* data, int64_t n, float* y) {
  using S = typename T::storage;
  const S* x = static_cast<const S*>(data);
  int64_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store(y + i, V::load(T{}, x + i));
  if (i < n) {
    S tail[V::lanes] = {};
    float wide[V::lanes];
    memcpy(tail, x + i, (n - i) * sizeof(S));
    V::store(wide, V::load(T{}, tail));
    memcpy(y + i, wide, (n - i) * sizeof(float));
  }
}

void narrow_f32(const float* x, int64_t n, void* y) { memcpy(y, x, n * sizeof(float)); }

void narrow_bf16(const float* x, int64_t n, void* y) {
  uint16_t* out = static_cast<uint16_t*>(y);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    out[i] = uint16_t((bits & 0x7fffffffu) > kInfBits ? kNanBits >> 16 : rounded);
  }
}

// Round to nearest even with the same adder trick as the FP8 cast; magnitudes from 65520 on become Inf.
void narrow_f16(const float* x, int64_t n, void* y) {
  uint16_t* out = static_cast<uint16_t*>(y);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(x[i]), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t finite = magnitude < 0x477ff000u ? magnitude : 0x477ff000u;  // 65520: rounds to Inf's code
    uint32_t exponent = finite & kInfBits;
    exponent = exponent < 0x38800000u ? 0x38800000u : exponent;  // 2^-14
    const uint32_t rounder = exponent + (13u << 23);
    const uint32_t steps = bits_of(float_of(finite) + float_of(rounder)) - rounder;
    const uint32_t code = steps + ((exponent - 0x38800000u) >> 13);
    out[i] = uint16_t(sign | (magnitude > kInfBits ? 0x7e00u : code));
  }
}

}  // namespace

void fill_epilogue(Kernels& k) {
  k.widen[int(DType::f32)] = widen<F32>;
  k.widen[int(DType::bf16)] = widen<BF16>;
  k.widen[int(DType::f16)] = widen<F16>;
  k.narrow[int(DType::f32)] = narrow_f32;
  k.narrow[int(DType::bf16)] = narrow_bf16;
  k.narrow[int(DType::f16)] = narrow_f16;
  k.scale_and_bias = scale_and_bias;
  k.relu = relu;
  k.gelu_tanh = gelu_tanh;
  k.dgelu = dgelu;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
