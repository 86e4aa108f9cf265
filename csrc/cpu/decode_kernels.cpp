// FP8 -> FP32, alone and as the weights of a matrix-vector product. Compiled once per instruction set (see simd.h).
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace transcast::cpu::TRANSCAST_ISA {
namespace {

template <class Fp8, bool stream>
void decode_span(const uint8_t* q, int64_t n, float scale, float* y) {
  const V::F factor = V::set(scale);
  int64_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) {
    const V::F value = V::mul(V::decode(Fp8{}, q + i), factor);
    if (stream) {
      V::stream(y + i, value);
    } else {
      V::store(y + i, value);
    }
  }
  for (; i < n; ++i) y[i] = transcast::decode<Fp8>(q[i]) * scale;
}

template <class Fp8>
void decode(const uint8_t* q, int64_t n, float scale, float* y, bool stream) {
  if (!stream || reinterpret_cast<uintptr_t>(y) % 64 != 0) return decode_span<Fp8, false>(q, n, scale, y);
  decode_span<Fp8, true>(q, n, scale, y);
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Truncation is exact: no FP8 mantissa is longer than BF16's.
template <class Fp8>
void decode_bf16(const uint8_t* q, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store_high_halves(y + i, V::decode(Fp8{}, q + i));
  for (; i < n; ++i) y[i] = uint16_t(bits_of(transcast::decode<Fp8>(q[i])) >> 16);
}

// The weights as the inner loop takes them: e4m3 with its power of two left for the end, and without a look at NaN.
TRANSCAST_INLINE V::F decode_weight(E4M3, const uint8_t* p) { return V::decode_256th(p); }
TRANSCAST_INLINE V::F decode_weight(E5M2, const uint8_t* p) { return V::decode(E5M2{}, p); }

// A byte-wide maximum finds NaN codes for a fraction of what the decoder would pay. It also brings the row into L1.
template <class Fp8>
bool has_nan(const uint8_t* w, int64_t k) {
  if (Fp8::format == Format::e5m2) return false;  // the converter keeps its NaN and Inf
  uint8_t largest = 0;
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t magnitude = w[i] & 0x7f;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest == kFp8Nan;
}

// Two accumulators per row hide the latency of the additions.
template <class Fp8, int rows>
void dot_rows(const uint8_t* w, int64_t w_stride, const float* x, int64_t k, float* out) {
  constexpr float unit = Fp8::format == Format::e4m3 ? 256.0f : 1.0f;
  bool nan[rows];
  for (int r = 0; r < rows; ++r) nan[r] = has_nan<Fp8>(w + r * w_stride, k);
  V::F sum[rows][2];
  for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = V::set(0.0f);
  int64_t i = 0;
  for (; i + 2 * V::lanes <= k; i += 2 * V::lanes) {
    const V::F x0 = V::load(x + i), x1 = V::load(x + i + V::lanes);
    for (int r = 0; r < rows; ++r) {
      const uint8_t* p = w + r * w_stride + i;
      __builtin_prefetch(p + rows * w_stride);  // the next call's rows: rows are pages apart for the hardware
      sum[r][0] = V::fma(decode_weight(Fp8{}, p), x0, sum[r][0]);
      sum[r][1] = V::fma(decode_weight(Fp8{}, p + V::lanes), x1, sum[r][1]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    float total = V::reduce_add(V::add(sum[r][0], sum[r][1])) * unit;
    for (int64_t j = i; j < k; ++j) total += transcast::decode<Fp8>(w[r * w_stride + j]) * x[j];
    out[r] = nan[r] ? float_of(kNanBits) : total;
  }
}

template <class Fp8>
void dot(const uint8_t* w, int64_t w_stride, int rows, const float* x, int64_t k, float* out) {
  if (rows == 4) return dot_rows<Fp8, 4>(w, w_stride, x, k, out);
  for (int r = 0; r < rows; ++r) dot_rows<Fp8, 1>(w + r * w_stride, w_stride, x, k, out + r);
}

}  // namespace

void fill_decode(Kernels& k) {
  k.decode[int(Format::e4m3)] = decode<E4M3>;
  k.decode[int(Format::e5m2)] = decode<E5M2>;
  k.decode_bf16[int(Format::e4m3)] = decode_bf16<E4M3>;
  k.decode_bf16[int(Format::e5m2)] = decode_bf16<E5M2>;
  k.dot[int(Format::e4m3)] = dot<E4M3>;
  k.dot[int(Format::e5m2)] = dot<E5M2>;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
