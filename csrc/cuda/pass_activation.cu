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

template <class Source>
Passes<Source> passes_of(const Operands<Source>&);

}  // namespace

template <>
void amax_pass<Kind::activation>(const CudaContext& context, const CastArgs& args, const Finish& finish) {
  visit_source(args, [&](const auto& operands) { decltype(passes_of(operands))::amax(context, args, operands, finish); });
}

template <>
void cast_pass<Kind::activation>(const CudaContext& context, const CastArgs& args, Global<const float> scale, bool again,
                                 const Finish& finish) {
  visit_source(args, [&](const auto& operands) {
    visit(args.format, [&](auto fp8) {
      using Pass = decltype(passes_of(operands));
      using Fp8 = decltype(fp8);
      if (args.q_t) {
        Pass::template cast_transpose<Fp8, false>(context, args, operands, scale, again, finish);
      } else {
        Pass::template cast<Fp8>(context, args, operands, scale, again, finish);
      }
    });
  });
}

}  // namespace transcast::cuda
