#include "cuda/passes.cuh"

namespace transcast::cuda {

template <>
void amax_pass<Kind::plain>(const CudaContext& context, const CastArgs& args, const Finish& finish) {
  visit(args.x.dtype, [&](auto t) {
    using Source = Plain<decltype(t)>;
    Passes<Source>::amax(context, args, {{&args.x}}, finish);
  });
}

template <>
void cast_pass<Kind::plain>(const CudaContext& context, const CastArgs& args, Global<const float> scale, bool again,
                            const Finish& finish) {
  visit(args.x.dtype, [&](auto t) {
    visit(args.format, [&](auto fp8) {
      using Pass = Passes<Plain<decltype(t)>>;
      using Fp8 = decltype(fp8);
      const Operands<Plain<decltype(t)>> operands{{&args.x}};
      if (args.dbias) {
        Pass::template cast_transpose<Fp8, true>(context, args, operands, scale, again, finish);
      } else if (args.q_t) {
        Pass::template cast_transpose<Fp8, false>(context, args, operands, scale, again, finish);
      } else {
        Pass::template cast<Fp8>(context, args, operands, scale, again, finish);
      }
    });
  });
}

}  // namespace transcast::cuda
