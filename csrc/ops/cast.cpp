// FP8 cast with a given scale: cast, cast_transpose, cast_transpose_dbias.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

struct Cast {
  Quantized out;
  Tensor amax;
};

Cast run(const char* op, const Tensor& x, const Tensor& scale, int32_t dtype, Wants wants) {
  View v;
  const Matrix m = quantizable(op, x, wants, v);
  const Format format = format_of(op, "dtype", dtype);
  const float* given = scalar(op, "scale", scale, x);
  Cast result{allocate(x, m, format, wants), empty_scalar(x)};
  transcast::cast(context(), result.out.args, given, data<float>(result.amax));
  return result;
}

std::tuple<Tensor, Tensor, Tensor> cast(const Tensor& x, const Tensor& scale, int32_t dtype) {
  auto [out, amax] = run("cast", x, scale, dtype, kRowsOnly);
  return {out.q, out.scale_inv, amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cast_transpose(const Tensor& x, const Tensor& scale, int32_t dtype) {
  auto [out, amax] = run("cast_transpose", x, scale, dtype, kTransposed);
  return {out.q, out.scale_inv, *out.q_t, amax};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> cast_transpose_dbias(const Tensor& x, const Tensor& scale,
                                                                        int32_t dtype) {
  auto [out, amax] = run("cast_transpose_dbias", x, scale, dtype, kWithDbias);
  return {out.q, out.scale_inv, *out.q_t, *out.dbias, amax};
}

STABLE_TORCH_LIBRARY_FRAGMENT(transcast, m) {
  m.def("cast(Tensor x, Tensor scale, ScalarType dtype) -> (Tensor q, Tensor scale_inv, Tensor amax)");
  m.def(
      "cast_transpose(Tensor x, Tensor scale, ScalarType dtype) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor amax)");
  m.def(
      "cast_transpose_dbias(Tensor x, Tensor scale, ScalarType dtype) -> "
      "(Tensor q, Tensor scale_inv, Tensor q_t, Tensor dbias, Tensor amax)");
}

STABLE_TORCH_LIBRARY_IMPL(transcast, CPU, m) {
  m.impl("cast", TORCH_BOX(&cast));
  m.impl("cast_transpose", TORCH_BOX(&cast_transpose));
  m.impl("cast_transpose_dbias", TORCH_BOX(&cast_transpose_dbias));
}

}  // namespace
}  // namespace transcast::ops
