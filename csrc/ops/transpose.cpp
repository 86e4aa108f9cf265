#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor transpose(const Tensor& q) {
  check(q.dim() >= 1, "transpose", "q", "must have at least one dimension, got shape ()");
  View v;
  const Codes c = codes("transpose", "q", q, v);
  Tensor q_t = empty(q, {c.cols, round_up(c.rows, kPadding)}, code_of(c.format));
  const Scope scope(q);
  transcast::transpose(scope.context(), {c, data<uint8_t>(q_t)});
  return q_t;
}

TRANSCAST_SCHEMAS(m) { m.def("transpose(Tensor q) -> Tensor"); }
TRANSCAST_OPS(m) { m.impl("transpose", TORCH_BOX(&transpose)); }

}  // namespace
}  // namespace transcast::ops
