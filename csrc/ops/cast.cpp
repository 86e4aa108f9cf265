// FP8 cast with a given scale: cast, cast_transpose, cast_transpose_dbias.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

std::tuple<Tensor, Tensor, Tensor> cast(const Tensor& x, const Tensor& scale, int32_t dtype) {
  const Quantized out = cast_given(input("cast", x, kRowsOnly), scale, dtype);
  return {out.q, out.scale_inv, *out.amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cast_transpose(const Tensor& x, const Tensor& scale, int32_t dtype) {
  const Quantized out = cast_given(input("cast_transpose", x, kTransposed), scale, dtype);
  return {out.q, out.scale_inv, *out.q_t, *out.amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> cast_transpose_dbias(const Tensor& x, const Tensor& scale,
                                                                        int32_t dtype) {
  const Quantized out = cast_given(input("cast_transpose_dbias", x, kWithDbias), scale, dtype);
  return {out.q, out.scale_inv, *out.q_t, *out.dbias, *out.amax};
}

TRANSCAST_SCHEMAS(m) {
  m.def("cast(Tensor x, Tensor scale, ScalarType dtype) -> (Tensor q, Tensor scale_inv, Tensor amax)");
  m.def(
      "cast_transpose(Tensor x, Tensor scale, ScalarType dtype) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor amax)");
  m.def(
      "cast_transpose_dbias(Tensor x, Tensor scale, ScalarType dtype) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor dbias, Tensor amax)");
}

TRANSCAST_OPS(m) {
  m.impl("cast", TORCH_BOX(&cast));
  m.impl("cast_transpose", TORCH_BOX(&cast_transpose));
  m.impl("cast_transpose_dbias", TORCH_BOX(&cast_transpose_dbias));
}

}  // namespace
}  // namespace transcast::ops
