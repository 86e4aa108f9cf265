// FP8 numerics: one cast, one decode, one scale rule, for host and device. Everything is exact bit arithmetic or a
// single IEEE operation, so that every backend gives the same bytes. And how the padding of transposed data counts.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace transcast {

constexpr uint32_t kInfBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;
constexpr uint8_t kFp8Nan = 0x7f;
constexpr int64_t kPadding = 16;  // the transposed output's columns are a multiple of this: what FP8 GEMMs need of K

TRANSCAST_HD constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
TRANSCAST_HD constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

TRANSCAST_HD uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

TRANSCAST_HD float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// FP32 -> FP8, round to nearest even, finite overflow and Inf to +-max, NaN to 0x7F. Adding 2^(e + 23 - mantissa_bits)
// makes the FP32 adder round at the FP8 mantissa's last place; the exponent floor does the same for subnormals.
template <class Fp8>
TRANSCAST_HD uint8_t encode(float value) {
  constexpr int shift = 23 - Fp8::mantissa_bits;
  const uint32_t bits = bits_of(value);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfBits) return kFp8Nan;
  if (magnitude > Fp8::max_bits) magnitude = Fp8::max_bits;
  uint32_t exponent = magnitude & kInfBits;
  if (exponent < Fp8::min_normal_bits) exponent = Fp8::min_normal_bits;
  const uint32_t rounder = exponent + (uint32_t(shift) << 23);
  const uint32_t steps = bits_of(float_of(magnitude) + float_of(rounder)) - rounder;
  const uint32_t code = steps + ((exponent - Fp8::min_normal_bits) >> shift);
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

// FP8 -> FP32, exact. Integer work on the exponent, so that no intermediate is an FP32 subnormal.
template <class Fp8>
TRANSCAST_HD float decode(uint8_t code) {
  constexpr int shift = 23 - Fp8::mantissa_bits;
  const uint32_t sign = uint32_t(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (Fp8::format == Format::e4m3 ? magnitude == 0x7f : magnitude > 0x7c) return float_of(kNanBits);
  if (Fp8::format == Format::e5m2 && magnitude == 0x7c) return float_of(sign | kInfBits);
  // With min_normal added, code 0 would read 2 * 2^(e_min - 1) = min_normal: subtracting it leaves subnormals exact.
  const bool subnormal = (magnitude >> Fp8::mantissa_bits) == 0;
  const uint32_t bits = (magnitude << shift) + Fp8::min_normal_bits - (subnormal ? 0u : 1u << 23);
  const float value = subnormal ? float_of(bits) - float_of(Fp8::min_normal_bits) : float_of(bits);
  return float_of(bits_of(value) | sign);
}

// E8M0 -> FP32, exact: 2^(code - 127), 0xFF is NaN.
TRANSCAST_HD float decode_e8m0(uint8_t code) {
  return float_of(code == 0xff ? kNanBits : code == 0 ? 1u << 22 : uint32_t(code) << 23);
}

struct ScaleRule {
  bool pow2;   // round the scale down to a power of two
  int margin;  // headroom: the scale is divided by 2^margin
};

constexpr int kMaxMargin = 64;

// amax (FP32 bits, sign clear) -> scale. DESIGN: 0, Inf and NaN give 1; one division; clamped so that the inverse of
// the scale is a normal number too.
TRANSCAST_HD float scale_from_amax(uint32_t amax, float format_max, ScaleRule rule) {
  if (amax == 0 || amax >= kInfBits) return 1.0f;
  float scale = format_max / float_of(amax);
  scale *= float_of(uint32_t(127 - rule.margin) << 23);
  constexpr uint32_t low = 1u << 23, high = 253u << 23;  // 2^-126, 2^126
  uint32_t bits = bits_of(scale);
  if (bits < low) bits = low;
  if (bits > high) bits = high;
  return float_of(rule.pow2 ? bits & kInfBits : bits);
}

TRANSCAST_HD float canonical(float value) {
  return (bits_of(value) & 0x7fffffffu) > kInfBits ? float_of(kNanBits) : value;
}

// The inverse scale that belongs to data of this amax: NaN when the data held Inf or NaN, so that no product of it
// looks finite.
TRANSCAST_HD float scale_inv_of(float scale, uint32_t amax) {
  return amax >= kInfBits ? float_of(kNanBits) : canonical(1.0f / scale);
}

}  // namespace transcast
