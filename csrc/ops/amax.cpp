#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor amax(const Tensor& x) {
  View v;
  const Matrix m = matrix("amax", "x", x, v);
  Tensor out = empty_scalar(x);
  transcast::amax(context(), {m, data<float>(out)});
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(transcast, m) { m.def("amax(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(transcast, CPU, m) { m.impl("amax", TORCH_BOX(&amax)); }

}  // namespace
}  // namespace transcast::ops
