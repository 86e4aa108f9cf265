#include "backend.h"
#include "cpu/cast.h"

namespace transcast {

void cast(const Context& context, const CastArgs& args, const float* scale, float* amax) {
  cpu::IeeeMode guard;
  const uint32_t bits = cpu::cast_pass(context, args, *scale);
  *amax = canonical(float_of(bits));
  *args.scale_inv = scale_inv_of(*scale, bits);
}

}  // namespace transcast
