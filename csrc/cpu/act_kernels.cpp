// Activations and their gradients on pieces of rows in FP32. Plain loops over the branch-free functions of core/act.h,
// which compilers vectorize. Compiled once per instruction set (see simd.h).
#include "core/act.h"
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace transcast::cpu::TRANSCAST_ISA {
namespace {

void gelu_tanh(const ActPiece& piece) {
  const float* __restrict x = piece.x;
  float* __restrict y = piece.y[0];
  for (int64_t i = 0; i < piece.n; ++i) y[i] = transcast::gelu_tanh(x[i]);
}

void silu(const ActPiece& piece) {
  const float* __restrict x = piece.x;
  float* __restrict y = piece.y[0];
  for (int64_t i = 0; i < piece.n; ++i) y[i] = transcast::silu(x[i]);
}

void swiglu(const ActPiece& piece) {
  const float *__restrict x = piece.x, *__restrict up = piece.up;
  float* __restrict y = piece.y[0];
  for (int64_t i = 0; i < piece.n; ++i) y[i] = transcast::silu(x[i]) * up[i];
}

void dgelu_tanh(const ActPiece& piece) {
  const float *__restrict x = piece.x, *__restrict g = piece.g;
  float* __restrict y = piece.y[0];
  for (int64_t i = 0; i < piece.n; ++i) y[i] = g[i] * transcast::dgelu_tanh(x[i]);
}

void dsilu(const ActPiece& piece) {
  const float *__restrict x = piece.x, *__restrict g = piece.g;
  float* __restrict y = piece.y[0];
  for (int64_t i = 0; i < piece.n; ++i) y[i] = g[i] * transcast::dsilu(x[i]);
}

void dswiglu(const ActPiece& piece) {
  const float *__restrict x = piece.x, *__restrict up = piece.up, *__restrict g = piece.g;
  float *__restrict gate = piece.y[0], *__restrict dup = piece.y[1];
  for (int64_t i = 0; i < piece.n; ++i) {
    gate[i] = (g[i] * transcast::dsilu(x[i])) * up[i];
    dup[i] = g[i] * transcast::silu(x[i]);
  }
}

}  // namespace

void fill_act(Kernels& k) {
  k.act[int(Act::gelu_tanh)] = gelu_tanh;
  k.act[int(Act::silu)] = silu;
  k.act[int(Act::swiglu)] = swiglu;
  k.dact[int(Act::gelu_tanh)] = dgelu_tanh;
  k.dact[int(Act::silu)] = dsilu;
  k.dact[int(Act::swiglu)] = dswiglu;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
