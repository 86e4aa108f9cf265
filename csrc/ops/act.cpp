// An activation and its cast in one pass (act_*), and the cast of its gradient (dact_*), with a given scale or with
// current scaling.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

using Maybe = std::optional<Tensor>;

Act act_named(const char* op, const std::string& name) {
  if (name == "gelu_tanh") return Act::gelu_tanh;
  if (name == "silu") return Act::silu;
  if (name == "swiglu") return Act::swiglu;
  refuse(op, "act", "must be gelu_tanh, silu or swiglu, got ", name);
}

// An operand that has one element for each of the value: its dtype, shape and device are settled by x.
Matrix operand(const char* argument, const Tensor& tensor, const Input& value) {
  const char* op = value.op;
  const DType expected = value.args.x.dtype;
  check(dtype_of(tensor) == code_of(expected), op, argument, "must have the dtype of x, ",
        dtype_name(code_of(expected)), ", got ", dtype_name(dtype_of(tensor)));
  check(sizes_of(tensor) == value.sizes, op, argument, "must have the shape of the activation's value, ",
        shape_name(value.sizes), ", got ", shape_name(tensor));
  check_same_device(op, argument, tensor, value.x);
  return checked_matrix(op, argument, tensor);
}

// x holds [gate | up].
void split(Input& value) {
  CastArgs& args = value.args;
  check(!value.sizes.empty(), value.op, "x", "must have at least one dimension, [gate | up], got shape ()");
  check(args.x.cols % 2 == 0, value.op, "x", "must hold [gate | up] of equal size in its last dimension, got shape ",
        shape_name(value.sizes));
  value.sizes.back() /= 2;
  args.x.cols /= 2;
  args.up = args.x;
}

Input activated(const char* op, const Tensor& x, const std::string& act, const Maybe& up, Wants wants) {
  Input value = input(op, x, wants);
  value.args.act = act_named(op, act);
  if (value.args.act != Act::swiglu) {
    check(!up, op, "up", "must be None unless act is swiglu, got a tensor beside ", act);
  } else if (up) {
    value.args.up = operand("up", *up, value);
    value.up = *up;
  } else {
    split(value);
  }
  return value;
}

Input differentiated(const char* op, const Tensor& g, const Tensor& x, const std::string& act, const Maybe& up) {
  Input gradient = activated(op, x, act, up, kWithDbias);
  gradient.args.g = operand("g", g, gradient);
  gradient.g = g;
  gradient.args.gradient = true;
  gradient.sizes.back() = gradient.args.out_cols();
  return gradient;
}

std::tuple<Tensor, Tensor, Tensor> act_cast(const Tensor& x, const Tensor& scale, int32_t dtype,
                                            const std::string& act, const Maybe& up) {
  const Quantized out = cast_given(activated("act_cast", x, act, up, kRowsOnly), scale, dtype);
  return {out.q, out.scale_inv, *out.amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> act_cast_transpose(const Tensor& x, const Tensor& scale, int32_t dtype,
                                                              const std::string& act, const Maybe& up) {
  const Quantized out = cast_given(activated("act_cast_transpose", x, act, up, kTransposed), scale, dtype);
  return {out.q, out.scale_inv, *out.q_t, *out.amax};
}

std::tuple<Tensor, Tensor> act_quantize(const Tensor& x, int32_t dtype, const std::string& act, const Maybe& up,
                                        bool pow2, int64_t margin) {
  const Quantized out = cast_current(activated("act_quantize", x, act, up, kRowsOnly), dtype, pow2, margin);
  return {out.q, out.scale_inv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> act_quantize_transpose(const Tensor& x, int32_t dtype,
                                                                  const std::string& act, const Maybe& up,
                                                                  bool pow2, int64_t margin) {
  const Quantized out =
      cast_current(activated("act_quantize_transpose", x, act, up, kTransposed), dtype, pow2, margin);
  return {out.q, out.scale_inv, *out.q_t, *out.scale_inv_t};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dact_cast_transpose_dbias(const Tensor& g, const Tensor& x,
                                                                             const Tensor& scale, int32_t dtype,
                                                                             const std::string& act,
                                                                             const Maybe& up) {
  const Quantized out = cast_given(differentiated("dact_cast_transpose_dbias", g, x, act, up), scale, dtype);
  return {out.q, out.scale_inv, *out.q_t, *out.dbias, *out.amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dact_quantize_transpose_dbias(const Tensor& g, const Tensor& x,
                                                                                 int32_t dtype,
                                                                                 const std::string& act,
                                                                                 const Maybe& up, bool pow2,
                                                                                 int64_t margin) {
  const Quantized out =
      cast_current(differentiated("dact_quantize_transpose_dbias", g, x, act, up), dtype, pow2, margin);
  return {out.q, out.scale_inv, *out.q_t, *out.scale_inv_t, *out.dbias};
}

TRANSCAST_SCHEMAS(m) {
  m.def(
      "act_cast(Tensor x, Tensor scale, ScalarType dtype, str act, Tensor? up=None) -> "
      "(Tensor q, Tensor scale_inv, Tensor amax)");
  m.def(
      "act_cast_transpose(Tensor x, Tensor scale, ScalarType dtype, str act, Tensor? up=None) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor amax)");
  m.def(
      "act_quantize(Tensor x, ScalarType dtype, str act, Tensor? up=None, bool pow2=False, int margin=0) -> "
      "(Tensor q, Tensor scale_inv)");
  m.def(
      "act_quantize_transpose(Tensor x, ScalarType dtype, str act, Tensor? up=None, bool pow2=False, "
      "int margin=0) -> (Tensor q, Tensor scale_inv, Tensor q_t, Tensor scale_inv_t)");
  m.def(
      "dact_cast_transpose_dbias(Tensor g, Tensor x, Tensor scale, ScalarType dtype, str act, Tensor? up=None) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor dbias, Tensor amax)");
  m.def(
      "dact_quantize_transpose_dbias(Tensor g, Tensor x, ScalarType dtype, str act, Tensor? up=None, "
      "bool pow2=False, int margin=0) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor scale_inv_t, Tensor dbias)");
}

TRANSCAST_OPS(m) {
  m.impl("act_cast", TORCH_BOX(&act_cast));
  m.impl("act_cast_transpose", TORCH_BOX(&act_cast_transpose));
  m.impl("act_quantize", TORCH_BOX(&act_quantize));
  m.impl("act_quantize_transpose", TORCH_BOX(&act_quantize_transpose));
  m.impl("dact_cast_transpose_dbias", TORCH_BOX(&dact_cast_transpose_dbias));
  m.impl("dact_quantize_transpose_dbias", TORCH_BOX(&dact_quantize_transpose_dbias));
}

}  // namespace
}  // namespace transcast::ops
