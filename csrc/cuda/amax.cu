#include "cuda/passes.h"

namespace transcast {

void amax(const Context& context, const AmaxArgs& args) {
  using namespace cuda;
  CastArgs cast{};
  cast.x = args.x;
  Finish finish{};
  finish.slot = {take_slot(context)};
  finish.amax = {args.amax};
  amax_pass<Kind::plain>(context, cast, finish);
}

}  // namespace transcast
