#include "cuda/passes.cuh"

namespace transcast::cuda {
namespace {

template <class Body>
void visit_source(const CastArgs& args, Body&& body) {
  visit(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (args.act == Act::swiglu) {
      body(Operands<Swiglu<T>>{{&args.x, &args.up}});
    } else {
      body(Operands<Activation<T>>{{&args.x}});
    }
  });
}

}  // namespace

template <>
void amax_pass<Kind::activation>(const CudaContext& context, const CastArgs& args, const Finish& finish) {
  visit_source(args, [&](const auto& operands) { amax_rows(context, args, operands, finish); });
}

template <>
void cast_pass<Kind::activation>(const CudaContext& context, const CastArgs& args, Global<const float> scale,
                                 bool again, const Finish& finish) {
  visit_source(args, [&](const auto& operands) {
    if (args.q_t) {
      cast_tiles<EitherFormat, false>(context, args, operands, scale, again, finish);
    } else {
      cast_rows<EitherFormat>(context, args, operands, scale, again, finish);
    }
  });
}

}  // namespace transcast::cuda
