#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor amax(const Tensor& x) {
  View v;
  const Matrix m = matrix("amax", "x", x, v);
  Tensor out = empty_scalar(x);
  const Scope scope(x);
  transcast::amax(scope.context(), {m, data<float>(out)});
  return out;
}

TRANSCAST_SCHEMAS(m) { m.def("amax(Tensor x) -> Tensor"); }
TRANSCAST_OPS(m) { m.impl("amax", TORCH_BOX(&amax)); }

}  // namespace
}  // namespace transcast::ops
