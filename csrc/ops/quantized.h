// What the quantizing ops share: their input, checked and flattened, and the two ways to cast it.
#pragma once

#include "ops/tensors.h"

namespace transcast::ops {

struct Wants {
  bool q_t, dbias;
};
constexpr Wants kRowsOnly{false, false}, kTransposed{true, false}, kWithDbias{true, true};

// What an op is to cast, checked: `args` has its matrices' shapes and dtypes. Where they lie is settled when outputs
// are allocated: a layout that cannot be used is copied, which must not happen before everything is checked. Then
// `args` points into the views, which keep the memory.
struct Input {
  const char* op;
  Wants wants;
  Tensor x;
  CastArgs args;
  std::vector<int64_t> sizes;  // of q
  std::optional<Tensor> up, g;
  std::vector<View> views;
};
Input input(const char* op, const Tensor& x, Wants wants, const char* argument = "x");

// The tensor's shape as that of a matrix without an address.
Matrix checked_matrix(const char* op, const char* argument, const Tensor&);

struct Quantized {
  Tensor q, scale_inv;
  std::optional<Tensor> q_t, scale_inv_t, dbias, amax;
};

// Outputs of a cast with current scaling, set in input.args, like the places of its operands.
Quantized allocate_scaled(Input& input, Format format);

ScaleRule scale_rule(const char* op, bool pow2, int64_t margin);

// The scale is given: with amax, without scale_inv_t.
Quantized cast_given(Input input, const Tensor& scale, int32_t dtype);
// The scale is that of the data's amax: without amax, with scale_inv_t beside q_t.
Quantized cast_current(Input input, int32_t dtype, bool pow2, int64_t margin);

}  // namespace transcast::ops
