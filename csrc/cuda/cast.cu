#include "cuda/passes.h"

namespace transcast {

void cast(const Context& context, const CastArgs& args, const float* scale, float* amax) {
  using namespace cuda;
  Finish finish{};
  finish.slot = {take_slot(context)};
  finish.given_scale = {scale};
  finish.amax = {amax};
  finish.scale_inv = {args.scale_inv};
  visit_kind(args, [&](auto kind) { cast_pass<kind.value>(context, args, {scale}, false, finish); });
}

}  // namespace transcast
