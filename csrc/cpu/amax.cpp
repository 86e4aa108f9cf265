#include "backend.h"
#include "cpu/amax.h"

namespace transcast {

void amax(const Context& context, const AmaxArgs& args) {
  *args.amax = canonical(float_of(cpu::amax_bits(context, args.x)));
}

}  // namespace transcast
