#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor dequantize(const Tensor& q, const Tensor& scale_inv, int32_t dtype) {
  View v;
  const Codes c = codes("dequantize", "q", q, v);
  const DType out_dtype = high_precision("dequantize", "dtype", dtype);
  const float* scale = scalar("dequantize", "scale_inv", scale_inv, q);
  Tensor y = empty(q, sizes_of(q), dtype);
  const Scope scope(q);
  transcast::dequantize(scope.context(), {c, scale, y.mutable_data_ptr(), out_dtype});
  return y;
}

TRANSCAST_SCHEMAS(m) {
  m.def("dequantize(Tensor q, Tensor scale_inv, ScalarType dtype) -> Tensor");
}
TRANSCAST_OPS(m) { m.impl("dequantize", TORCH_BOX(&dequantize)); }

}  // namespace
}  // namespace transcast::ops
