// What is cast: a matrix, an activation of it, or an activation's gradient. A source has operands of one shape, and
// makes kParts rows of eight FP32 values from eight elements of each. Zeros, which stand for what is outside of the
// matrix, give zeros.
#pragma once

#include "backend.h"
#include "core/act.h"
#include "cuda/segment.cuh"

namespace transcast::cuda {

template <class T, int kOperandCount, int kPartCount>
struct SourceBase {
  using Element = T;
  static constexpr int kOperands = kOperandCount, kParts = kPartCount;
  // Rows that a warp loads before it uses the first: about eight 16-byte loads per thread in flight.
  static constexpr int kBatch = 8 / (kOperands * Chunks<T>::kCount);
  static constexpr bool kLong = false;  // so much arithmetic on one load that others would be put off
  Input operand[kOperands];
};

template <class T>
struct Plain : SourceBase<T, 1, 1> {
  __device__ __forceinline__ void values(const Chunks<T> (&in)[1], float (&v)[1][8]) const { widen(in[0], v[0]); }
};

__device__ __forceinline__ float activated(Act act, float x) { return act == Act::gelu_tanh ? gelu_tanh(x) : silu(x); }
__device__ __forceinline__ float slope(Act act, float x) { return act == Act::gelu_tanh ? dgelu_tanh(x) : dsilu(x); }

template <class T>
struct Activation : SourceBase<T, 1, 1> {
  static constexpr bool kLong = true;
  Act act;
  __device__ __forceinline__ void values(const Chunks<T> (&in)[1], float (&v)[1][8]) const {
    widen(in[0], v[0]);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[0][e] = activated(act, v[0][e]);
  }
};

// Operands: gate, up.
template <class T>
struct Swiglu : SourceBase<T, 2, 1> {
  __device__ __forceinline__ void values(const Chunks<T> (&in)[2], float (&v)[1][8]) const {
    float up[8];
    widen(in[0], v[0]);
    widen(in[1], up);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[0][e] = silu(v[0][e]) * up[e];
  }
};

// Operands: x, g.
template <class T>
struct ActivationGradient : SourceBase<T, 2, 1> {
  Act act;
  __device__ __forceinline__ void values(const Chunks<T> (&in)[2], float (&v)[1][8]) const {
    float x[8];
    widen(in[0], x);
    widen(in[1], v[0]);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[0][e] = v[0][e] * slope(act, x[e]);
  }
};

// Operands: gate, up, g. Parts: the gradients of gate and of up.
template <class T>
struct SwigluGradient : SourceBase<T, 3, 2> {
  __device__ __forceinline__ void values(const Chunks<T> (&in)[3], float (&v)[2][8]) const {
    float gate[8], up[8], g[8];
    widen(in[0], gate);
    widen(in[1], up);
    widen(in[2], g);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      v[0][e] = (g[e] * dsilu(gate[e])) * up[e];
      v[1][e] = g[e] * silu(gate[e]);
    }
  }
};

}  // namespace transcast::cuda
