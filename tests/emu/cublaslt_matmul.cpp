// The product itself, in the documented order: D = sD * epilogue(alpha * sA * sB * A * B + beta * C + bias), the amax
// before sD. Sums in FP32, conversions by CUDA's own headers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "emu/arithmetic.h"
#include "emu/cublaslt.h"
#include "emu/global_memory.h"

namespace emu::lt {
namespace {

// ---- Values in memory

float decode(uint8_t code, __nv_fp8_interpretation_t format) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format)));
}

float load(const void* data, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_32F: return static_cast<const float*>(data)[i];
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case CUDA_R_16F: return __half2float(static_cast<const __half*>(data)[i]);
    default: return decode(static_cast<const uint8_t*>(data)[i], type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2);
  }
}

void store(void* data, cudaDataType_t type, int64_t i, float value) {
  switch (type) {
    case CUDA_R_32F: static_cast<float*>(data)[i] = value; break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value); break;
    case CUDA_R_16F: static_cast<__half*>(data)[i] = __float2half_rn(value); break;
    default:
      static_cast<uint8_t*>(data)[i] =
          __nv_cvt_float_to_fp8(value, __NV_SATFINITE, type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2);
  }
}

float rounded(cudaDataType_t type, float value) {
  float memory;
  store(&memory, type, 0, value);
  return load(&memory, type, 0);
}

// ---- A matrix that may be touched

void demand(const char* what, const void* data, size_t bytes, bool to_write) {
  if (may_touch(data, bytes, to_write)) return;
  throw std::runtime_error(std::string("emulated cublasLtMatmul: ") + what +
                           " lies outside of every tensor and workspace, or must not be written");
}

size_t extent(const Layout& layout, int64_t leading, cudaDataType_t type) {
  return size_t((layout.columns() - 1) * leading + layout.rows()) * bytes_of(type);
}

template <class Pointer>
Pointer attribute(const Question& q, cublasLtMatmulDescAttributes_t number) {
  return q.op.get<Pointer>(number);
}

// ---- Sums

// Of A or B: element (i, k) of op(A), or (j, k) of op(B)^T.
struct Operand {
  const uint8_t* data;
  int64_t stride, k_stride;
  std::array<float, 256> values;

  Operand(const void* memory, const Layout& layout, bool k_is_contiguous)
      : data(static_cast<const uint8_t*>(memory)),
        stride(k_is_contiguous ? layout.leading() : 1),
        k_stride(k_is_contiguous ? 1 : layout.leading()) {
    const auto format = layout.type() == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    for (int code = 0; code < 256; ++code) values[size_t(code)] = decode(uint8_t(code), format);
  }
  float at(int64_t i, int64_t k) const { return values[data[i * stride + k * k_stride]]; }
};

// sums[j * m + i] = sum over k of a(i, k) * b(j, k), in panels of k whose decoded A stays in cache.
std::vector<float> multiply(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kPanel = 64;
  std::vector<float> sums(size_t(m * n)), panel(size_t(m * kPanel));
  for (int64_t first = 0; first < k; first += kPanel) {
    const int64_t last = std::min(k, first + kPanel);
    for (int64_t kk = first; kk < last; ++kk) {
      for (int64_t i = 0; i < m; ++i) panel[size_t((kk - first) * m + i)] = a.at(i, kk);
    }
    for (int64_t j = 0; j < n; ++j) {
      float* const column = sums.data() + j * m;
      for (int64_t kk = first; kk < last; ++kk) {
        const float factor = b.at(j, kk), *const row = panel.data() + (kk - first) * m;
        for (int64_t i = 0; i < m; ++i) column[i] += row[i] * factor;
      }
    }
  }
  return sums;
}

// ---- Epilogues

float gelu(float x) {
  return float(0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * double(x) * x * x))));
}

float gelu_slope(float x) {
  if (std::fabs(x) > 30) return x > 0 ? 1.0f : 0.0f;
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * double(x) * x * x));
  return float(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * double(x) * x));
}

struct Epilogue {
  uint32_t kind;
  cudaDataType_t d_type, bias_type, aux_type;
  const void* bias;
  void* aux;
  int64_t aux_leading;

  // Documented for the forms with an auxiliary output: they add the bias to the product already rounded to D's type.
  float with_bias(float value, int64_t i) const {
    if (!(kind & CUBLASLT_EPILOGUE_BIAS)) return value;
    return ((kind & 128) ? rounded(d_type, value) : value) + load(bias, bias_type, i);
  }

  float operator()(float value, int64_t i, int64_t j) const {
    value = with_bias(value, i);
    const int64_t at = i + j * aux_leading;
    if (kind == CUBLASLT_EPILOGUE_DGELU) return value * gelu_slope(load(aux, aux_type, at));
    if (kind & CUBLASLT_EPILOGUE_GELU) {
      if (kind & 128) store(aux, aux_type, at, value);
      return gelu(value);
    }
    return (kind & CUBLASLT_EPILOGUE_RELU) && value < 0 ? 0.0f : value;  // of NaN the documentation says nothing
  }
};

Epilogue epilogue_of(const Question& q) {
  Epilogue e{};
  e.kind = q.op.get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE);
  e.d_type = q.d.type();
  if (e.kind & CUBLASLT_EPILOGUE_BIAS) {
    e.bias = attribute<const void*>(q, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    e.bias_type = bias_type_of(q);
    demand("the bias", e.bias, size_t(q.d.rows()) * bytes_of(e.bias_type), false);
  }
  if (e.kind & 128) {
    e.aux = attribute<void*>(q, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    e.aux_type = aux_type_of(q);
    e.aux_leading = q.op.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    demand("the auxiliary matrix", e.aux, extent(q.d, e.aux_leading, e.aux_type), e.kind != CUBLASLT_EPILOGUE_DGELU);
  }
  return e;
}

// ---- Scales

// nullptr: 1. One scale, or one for each row of D (A) or column of D (B).
struct Scale {
  const float* values;
  bool vector;
  float operator[](int64_t i) const { return values ? values[vector ? i : 0] : 1.0f; }
};

Scale scale_of(const Question& q, const char* what, cublasLtMatmulDescAttributes_t number, bool vector,
               int64_t length) {
  const auto* values = attribute<const float*>(q, number);
  if (values) demand(what, values, sizeof(float) * size_t(vector ? length : 1), false);
  return {values, vector};
}

bool scales_by_rows(const Question& q) {
#if CUBLAS_VERSION >= 120900
  const auto mode = q.op.get<int32_t>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && mode != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) {
    throw std::runtime_error("emulated cublasLtMatmul: block scales are judged, but not computed");
  }
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
#else
  (void)q;
  return false;
#endif
}

uint32_t magnitude(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

}  // namespace

void compute(const Question& q, const Operands& o) {
  const DefaultArithmetic arithmetic;
  const bool a_contiguous = q.op.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N;
  const bool b_contiguous = q.op.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_N;
  const int64_t m = q.d.rows(), n = q.d.columns(), k = a_contiguous ? q.a.rows() : q.a.columns();
  demand("A", o.a, extent(q.a, q.a.leading(), q.a.type()), false);
  demand("B", o.b, extent(q.b, q.b.leading(), q.b.type()), false);
  if (o.beta != 0) demand("C", o.c, extent(q.c, q.c.leading(), q.c.type()), false);
  demand("D", o.d, extent(q.d, q.d.leading(), q.d.type()), true);
  const bool by_rows = scales_by_rows(q);
  const Scale a_scale = scale_of(q, "the scale of A", CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, by_rows, m);
  const Scale b_scale = scale_of(q, "the scale of B", CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, by_rows, n);
  const Scale d_scale = scale_of(q, "the scale of D", CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, false, 1);
  auto* const amax = attribute<uint32_t*>(q, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
  if (amax) demand("the amax of D", amax, sizeof *amax, true);
  const Epilogue epilogue = epilogue_of(q);

  const std::vector<float> sums = multiply({o.a, q.a, a_contiguous}, {o.b, q.b, b_contiguous}, m, n, k);
  uint32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float value = sums[size_t(j * m + i)] * (o.alpha * a_scale[i] * b_scale[j]);
      if (o.beta != 0) value += o.beta * load(o.c, q.c.type(), i + j * q.c.leading());
      value = epilogue(value, i, j);
      largest = std::max(largest, magnitude(value));
      store(o.d, q.d.type(), i + j * q.d.leading(), value * d_scale[0]);
    }
  }
  if (amax) *amax = largest;
}

}  // namespace emu::lt
