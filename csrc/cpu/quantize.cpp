#include "backend.h"
#include "cpu/amax.h"
#include "cpu/cast.h"

namespace transcast {

void quantize(const Context& context, const CastArgs& args, ScaleRule rule, float* scale_inv_t) {
  cpu::IeeeMode guard;
  const uint32_t amax = cpu::amax_bits(context, args.x);
  const float format_max = visit(args.format, [](auto fp8) { return decltype(fp8)::max; });
  const float scale = scale_from_amax(amax, format_max, rule);
  cpu::cast_pass(context, args, scale);
  *args.scale_inv = scale_inv_of(scale, amax);
  if (scale_inv_t) *scale_inv_t = *args.scale_inv;
}

}  // namespace transcast
