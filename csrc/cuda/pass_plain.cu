#include "cuda/passes.cuh"

namespace transcast::cuda {

template <>
void amax_pass<Kind::plain>(const CudaContext& context, const CastArgs& args, const Finish& finish) {
  visit(args.x.dtype, [&](auto t) {
    amax_rows(context, args, Operands<Plain<decltype(t)>>{{&args.x}}, finish);
  });
}

template <>
void cast_pass<Kind::plain>(const CudaContext& context, const CastArgs& args, Global<const float> scale, bool again,
                            const Finish& finish) {
  visit(args.x.dtype, [&](auto t) {
    visit(args.format, [&](auto fp8) {
      using Fp8 = decltype(fp8);
      const Operands<Plain<decltype(t)>> operands{{&args.x}};
      if (args.dbias) {
        cast_tiles<Fp8, true>(context, args, operands, scale, again, finish);
      } else if (args.q_t) {
        cast_tiles<Fp8, false>(context, args, operands, scale, again, finish);
      } else {
        cast_rows<Fp8>(context, args, operands, scale, again, finish);
      }
    });
  });
}

}  // namespace transcast::cuda
