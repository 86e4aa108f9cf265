#include "cuda/passes.cuh"

namespace transcast::cuda {
namespace {

template <class Body>
void visit_source(const CastArgs& args, Body&& body) {
  visit(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (args.act == Act::swiglu) {
      body(Operands<SwigluGradient<T>>{{&args.x, &args.up, &args.g}});
    } else {
      body(Operands<ActivationGradient<T>>{{&args.x, &args.g}});
    }
  });
}

}  // namespace

template <>
void amax_pass<Kind::gradient>(const CudaContext& context, const CastArgs& args, const Finish& finish) {
  visit_source(args, [&](const auto& operands) { amax_rows(context, args, operands, finish); });
}

// The only ops with gradients write q, q_t and dbias.
template <>
void cast_pass<Kind::gradient>(const CudaContext& context, const CastArgs& args, Global<const float> scale, bool again,
                               const Finish& finish) {
  visit_source(args, [&](const auto& operands) {
    cast_tiles<EitherFormat, true>(context, args, operands, scale, again, finish);
  });
}

}  // namespace transcast::cuda
