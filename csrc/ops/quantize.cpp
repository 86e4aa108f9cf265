// Current scaling: quantize, quantize_transpose, quantize_transpose_dbias.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& x, int32_t dtype, bool pow2, int64_t margin) {
  const Quantized out = cast_current(input("quantize", x, kRowsOnly), dtype, pow2, margin);
  return {out.q, out.scale_inv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_transpose(const Tensor& x, int32_t dtype, bool pow2,
                                                              int64_t margin) {
  const Quantized out = cast_current(input("quantize_transpose", x, kTransposed), dtype, pow2, margin);
  return {out.q, out.scale_inv, *out.q_t, *out.scale_inv_t};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> quantize_transpose_dbias(const Tensor& x, int32_t dtype,
                                                                            bool pow2, int64_t margin) {
  const Quantized out = cast_current(input("quantize_transpose_dbias", x, kWithDbias), dtype, pow2, margin);
  return {out.q, out.scale_inv, *out.q_t, *out.scale_inv_t, *out.dbias};
}

TRANSCAST_SCHEMAS(m) {
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

TRANSCAST_OPS(m) {
  m.impl("quantize", TORCH_BOX(&quantize));
  m.impl("quantize_transpose", TORCH_BOX(&quantize_transpose));
  m.impl("quantize_transpose_dbias", TORCH_BOX(&quantize_transpose_dbias));
}

}  // namespace
}  // namespace transcast::ops
