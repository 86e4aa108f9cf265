// Current scaling: one launch for the amax, whose last block makes the scale, and one that casts with it.
#include "cuda/passes.h"

namespace transcast {

void quantize(const Context& context, const CastArgs& args, ScaleRule rule) {
  using namespace cuda;
  Finish finish{};
  finish.slot = {take_slot(context)};
  finish.rule = rule;
  finish.format_max = format_max(args.format);
  finish.scale_inv = {args.scale_inv};
  finish.scale_inv_t = {args.scale_inv_t};
  visit_kind(args, [&](auto kind) {
    amax_pass<kind.value>(context, args, finish);
    cast_pass<kind.value>(context, args, {&finish.slot.address->scale}, true, Finish{});
  });
}

}  // namespace transcast
