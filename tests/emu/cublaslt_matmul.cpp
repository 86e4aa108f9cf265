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

// ---- Scales

// E8M0 as CUDA's headers have it from 12.8 on: 2^(code - 127).
float power_of_two(uint8_t code) { return code == 0xff ? NAN : std::ldexp(1.0f, int(code) - 127); }

// The scale of row i (of A or of B^T) and depth k. No memory: 1.
struct Scale {
  enum Mode { one, rows, blocks_1x128, blocks_128x128, blocks_1x32 };
  const void* memory;
  Mode mode;
  int64_t length, depth;  // rows and columns of the operand

  bool of_blocks() const { return mode > rows; }
  float at(int64_t i, int64_t k) const {
    if (!memory) return 1.0f;
    const auto* values = static_cast<const float*>(memory);
    switch (mode) {
      case one: return values[0];
      case rows: return values[i];
      case blocks_1x128: return values[k / 128 * length + i];
      case blocks_128x128: return values[i / 128 * leading() + k / 128];
      default: return power_of_two(static_cast<const uint8_t*>(memory)[place(i, k / 32)]);
    }
  }
  size_t bytes() const {
    switch (mode) {
      case one: return sizeof(float);
      case rows: return sizeof(float) * size_t(length);
      case blocks_1x128: return sizeof(float) * size_t(length * up(depth, 128));
      case blocks_128x128: return sizeof(float) * size_t(up(length, 128) * leading());
      default: return size_t(up(length, 128) * up(depth, 128) * 512);
    }
  }

 private:
  static int64_t up(int64_t n, int64_t size) { return (n + size - 1) / size; }
  int64_t leading() const { return up(up(depth, 128), 4) * 4; }
  // Tiles of 128 rows and 4 blocks, row after row of tiles; in a tile, rows r, r + 32, r + 64 and r + 96 lie together.
  int64_t place(int64_t i, int64_t block) const {
    const int64_t tile = i / 128 * up(depth, 128) + block / 4;
    return tile * 512 + i % 32 * 16 + i % 128 / 32 * 4 + block % 4;
  }
};

Scale::Mode mode_of(const Question& q, bool of_a) {
#if CUBLAS_VERSION >= 120900
  switch (q.op.get<int32_t>(of_a ? CUBLASLT_MATMUL_DESC_A_SCALE_MODE : CUBLASLT_MATMUL_DESC_B_SCALE_MODE)) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F: return Scale::one;
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return Scale::rows;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return Scale::blocks_1x128;
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return Scale::blocks_128x128;
    default: return Scale::blocks_1x32;
  }
#else
  (void)q, (void)of_a;
  return Scale::one;
#endif
}

Scale scale_of(const Question& q, const char* what, cublasLtMatmulDescAttributes_t number, Scale::Mode mode,
               int64_t length, int64_t depth) {
  const Scale scale{attribute<const void*>(q, number), mode, length, depth};
  if (scale.memory) demand(what, scale.memory, scale.bytes(), false);
  return scale;
}

// ---- Sums

// Of A or B: element (i, k) of op(A), or (j, k) of op(B)^T, with the scale of its block.
struct Operand {
  const uint8_t* data;
  int64_t stride, k_stride;
  Scale scale;
  std::array<float, 256> values;

  Operand(const void* memory, const Layout& layout, bool k_is_contiguous, const Scale& of_blocks)
      : data(static_cast<const uint8_t*>(memory)),
        stride(k_is_contiguous ? layout.leading() : 1),
        k_stride(k_is_contiguous ? 1 : layout.leading()),
        scale(of_blocks) {
    const auto format = layout.type() == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    for (int code = 0; code < 256; ++code) values[size_t(code)] = decode(uint8_t(code), format);
  }
  float at(int64_t i, int64_t k) const {
    const float value = values[data[i * stride + k * k_stride]];
    return scale.of_blocks() ? value * scale.at(i, k) : value;
  }
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
    return kind & CUBLASLT_EPILOGUE_RELU ? std::fmax(value, 0.0f) : value;  // NaN is not documented: lost here
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

// Nor is it said that an amax keeps a NaN: lost here, too.
uint32_t magnitude(float value) {
  if (std::isnan(value)) return 0;
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
  const Scale a_scale = scale_of(q, "the scale of A", CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, mode_of(q, true), m, k);
  const Scale b_scale = scale_of(q, "the scale of B", CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, mode_of(q, false), n, k);
  const Scale d_scale = scale_of(q, "the scale of D", CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Scale::one, 1, 1);
  auto* const amax = attribute<uint32_t*>(q, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
  if (amax) demand("the amax of D", amax, sizeof *amax, true);
  const Epilogue epilogue = epilogue_of(q);

  const std::vector<float> sums =
      multiply({o.a, q.a, a_contiguous, a_scale}, {o.b, q.b, b_contiguous, b_scale}, m, n, k);
  uint32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float value = o.alpha * sums[size_t(j * m + i)];
      if (!a_scale.of_blocks()) value *= a_scale.at(i, 0) * b_scale.at(j, 0);
      if (o.beta != 0) value += o.beta * load(o.c, q.c.type(), i + j * q.c.leading());
      value = epilogue(value, i, j);
      largest = std::max(largest, magnitude(value));
      store(o.d, q.d.type(), i + j * q.d.leading(), value * d_scale.at(0, 0));
    }
  }
  if (amax) *amax = largest;
}

}  // namespace emu::lt
