#include "backend.h"
#include "cpu/cast.h"

namespace transcast {

void quantize(const Context& context, const CastArgs& args, ScaleRule rule) {
  cpu::IeeeMode guard;
  const uint32_t amax = cpu::amax_bits(context, args);
  const float format_max = visit(args.format, [](auto fp8) { return decltype(fp8)::max; });
  const float scale = scale_from_amax(amax, format_max, rule);
  cpu::cast_pass(context, args, scale);
  *args.scale_inv = scale_inv_of(scale, amax);
  if (args.scale_inv_t) *args.scale_inv_t = *args.scale_inv;
}

void multi_quantize(const Context& context, const CastArgs* args, int64_t n, ScaleRule rule) {
  for (int64_t i = 0; i < n; ++i) quantize(context, args[i], rule);
}

}  // namespace transcast
