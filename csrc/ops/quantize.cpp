// Current scaling: quantize, quantize_transpose, quantize_transpose_dbias.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

struct Current {
  Quantized out;
  std::optional<Tensor> scale_inv_t;
};

Current run(const char* op, const Tensor& x, int32_t dtype, bool pow2, int64_t margin, Wants wants) {
  View v;
  const Matrix m = quantizable(op, x, wants, v);
  const Format format = format_of(op, "dtype", dtype);
  check(-kMaxMargin <= margin && margin <= kMaxMargin, op, "margin", "must be between -", kMaxMargin, " and ",
        kMaxMargin, ", got ", margin);
  Current result{allocate(x, m, format, wants), std::nullopt};
  if (wants.q_t) result.scale_inv_t = empty_scalar(x);
  transcast::quantize(context(), result.out.args, {pow2, int(margin)},
                      result.scale_inv_t ? data<float>(*result.scale_inv_t) : nullptr);
  return result;
}

std::tuple<Tensor, Tensor> quantize(const Tensor& x, int32_t dtype, bool pow2, int64_t margin) {
  auto [out, none] = run("quantize", x, dtype, pow2, margin, kRowsOnly);
  return {out.q, out.scale_inv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_transpose(const Tensor& x, int32_t dtype, bool pow2,
                                                              int64_t margin) {
  auto [out, scale_inv_t] = run("quantize_transpose", x, dtype, pow2, margin, kTransposed);
  return {out.q, out.scale_inv, *out.q_t, *scale_inv_t};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_transpose_dbias(const Tensor& x, int32_t dtype,
                                                                            bool pow2, int64_t margin) {
  auto [out, scale_inv_t] =
      run("quantize_transpose_dbias", x, dtype, pow2, margin, kWithDbias);
  return {out.q, out.scale_inv, *out.q_t, *scale_inv_t, *out.dbias};
}

STABLE_TORCH_LIBRARY_FRAGMENT(transcast, m) {
  m.def(
      "quantize(Tensor x, ScalarType dtype, bool pow2=False, int margin=0) -> "
      "(Tensor q, Tensor scale_inv)");
  m.def(
      "quantize_transpose(Tensor x, ScalarType dtype, bool pow2=False, int margin=0) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor scale_inv_t)");
  m.def(
      "quantize_transpose_dbias(Tensor x, ScalarType dtype, bool pow2=False, int margin=0) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor scale_inv_t, Tensor dbias)");
}

STABLE_TORCH_LIBRARY_IMPL(transcast, CPU, m) {
  m.impl("quantize", TORCH_BOX(&quantize));
  m.impl("quantize_transpose", TORCH_BOX(&quantize_transpose));
  m.impl("quantize_transpose_dbias", TORCH_BOX(&quantize_transpose_dbias));
}

}  // namespace
}  // namespace transcast::ops
