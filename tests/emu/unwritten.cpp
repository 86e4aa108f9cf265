// An op that allocates an output and never writes it: what an op's outputs hold before it does.
#include "ops/tensors.h"

namespace transcast::ops {
namespace {

Tensor unwritten(const Tensor& like) {
  const Scope scope(like);
  return empty(like, sizes_of(like), dtype_of(like));
}

TRANSCAST_SCHEMAS(m) { m.def("unwritten(Tensor like) -> Tensor"); }
TRANSCAST_OPS(m) { m.impl("unwritten", TORCH_BOX(&unwritten)); }

}  // namespace
}  // namespace transcast::ops
