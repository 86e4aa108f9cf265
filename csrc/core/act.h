// Activations in FP32, written as a fixed sequence of IEEE operations (no libm, no contraction), so that they
// vectorize and give the same bits wherever they are compiled.
#pragma once

#include "core/fp8.h"

namespace transcast {

// e^x: x = n ln2 + r, |r| <= ln2/2; Taylor polynomial of degree 7 in r (its remainder is below 2^-27 relative). Below
// -104 the result is 0, above 89 Inf; NaN stays NaN.
TRANSCAST_HD float exp_f32(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  float r = x - n * 0.693359375f;  // ln2's high part has 9 bits: the product is exact
  r = r - n * -2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two halves: n runs from -150 to 128, beyond what one exponent field holds.
  const int32_t exponent = static_cast<int32_t>(bits_of(shifted)) - 0x4b400000;
  const int32_t half = exponent >> 1;
  const float first = float_of(uint32_t(half + 127) << 23);
  const float second = float_of(uint32_t(exponent - half + 127) << 23);
  return p * first * second;
}

TRANSCAST_HD float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// gelu in tanh form: x/2 (1 + tanh u) = x sigmoid(2u), with 2u = 2 sqrt(2/pi) (x + 0.044715 x^3).
TRANSCAST_HD float gelu_tanh(float x) { return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x)); }

// Its derivative: s + x s (1 - s) (2u)'. Beyond |x| = 12 it is 1 or 0 to the last bit, and x^2 could overflow.
TRANSCAST_HD float dgelu_tanh(float x) {
  x = x > 12.0f ? 12.0f : x;
  x = x < -12.0f ? -12.0f : x;
  const float s = sigmoid(1.5957691f * (x + 0.044715f * x * x * x));
  return s + x * s * (1.0f - s) * (1.5957691f * (1.0f + 0.134145f * x * x));
}

// -Inf gives NaN (-Inf * 0), as an Inf that meets a zero gate should: it is not lost.
TRANSCAST_HD float silu(float x) { return x * sigmoid(x); }

// Its derivative: s (1 + x (1 - s)). Beyond |x| = 110 it is 1 or 0 to the last bit, and Inf * 0 would be NaN. The
// sigmoid is that of x itself, so that silu(x) beside it costs no second one.
TRANSCAST_HD float dsilu(float x) {
  const float s = sigmoid(x);
  x = x > 110.0f ? 110.0f : x;
  x = x < -110.0f ? -110.0f : x;
  return s * (1.0f + x * (1.0f - s));
}

}  // namespace transcast
