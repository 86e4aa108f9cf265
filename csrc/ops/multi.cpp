// quantize_transpose for a list of tensors, of any shapes and dtypes: all weights of a model in one call.
#include "ops/quantized.h"

namespace transcast::ops {
namespace {

using Tensors = std::vector<Tensor>;
using Lists = std::tuple<Tensors, Tensors, Tensors, Tensors>;

Lists multi_quantize_transpose(const Tensors& xs, int32_t dtype, bool pow2, int64_t margin) {
  const char* op = "multi_quantize_transpose";
  const Format format = format_of(op, "dtype", dtype);
  const ScaleRule rule = scale_rule(op, pow2, margin);
  std::vector<Input> inputs;
  inputs.reserve(xs.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    const std::string name = "xs[" + std::to_string(i) + "]";
    inputs.push_back(input(op, xs[i], kTransposed, name.c_str()));
    check_same_device(op, name.c_str(), xs[i], xs[0]);
  }
  Tensors q, scale_inv, q_t, scale_inv_t;
  std::vector<CastArgs> args;
  for (Input& x : inputs) {
    const Quantized out = allocate_scaled(x, format);
    args.push_back(x.args);
    q.push_back(out.q);
    scale_inv.push_back(out.scale_inv);
    q_t.push_back(*out.q_t);
    scale_inv_t.push_back(*out.scale_inv_t);
  }
  if (!xs.empty()) {
    const Scope scope(xs[0]);
    transcast::multi_quantize(scope.context(), args.data(), int64_t(args.size()), rule);
  }
  return {q, scale_inv, q_t, scale_inv_t};
}

TRANSCAST_SCHEMAS(m) {
  m.def(
      "multi_quantize_transpose(Tensor[] xs, ScalarType dtype, bool pow2=False, int margin=0) -> "
      "(Tensor[] q, Tensor[] scale_inv, Tensor[] q_t, Tensor[] scale_inv_t)");
}

TRANSCAST_OPS(m) { m.impl("multi_quantize_transpose", TORCH_BOX(&multi_quantize_transpose)); }

#if !defined(TRANSCAST_NO_SCHEMAS)
// An empty list names no device, so torch cannot choose a kernel by it and takes this one.
Lists no_device(const Tensors& xs, int32_t dtype, bool pow2, int64_t margin) {
  check(xs.empty(), "multi_quantize_transpose", "xs", "must hold tensors on the CPU or a CUDA device");
  return multi_quantize_transpose(xs, dtype, pow2, margin);
}

STABLE_TORCH_LIBRARY_IMPL(TRANSCAST_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("multi_quantize_transpose", TORCH_BOX(&no_device));
}
#endif

}  // namespace
}  // namespace transcast::ops
