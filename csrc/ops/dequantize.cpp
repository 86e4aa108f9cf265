#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor dequantize(const Tensor& q, const Tensor& scale_inv, int32_t dtype) {
  View v;
  const Codes c = codes("dequantize", "q", q, v);
  const DType out_dtype = high_precision("dequantize", "dtype", dtype);
  const float* scale = scalar("dequantize", "scale_inv", scale_inv, q);
  Tensor y = empty(q, sizes_of(q), dtype);
  transcast::dequantize(context(), {c, scale, y.mutable_data_ptr(), out_dtype});
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(transcast, m) {
  m.def("dequantize(Tensor q, Tensor scale_inv, ScalarType dtype) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(transcast, CPU, m) { m.impl("dequantize", TORCH_BOX(&dequantize)); }

}  // namespace
}  // namespace transcast::ops
