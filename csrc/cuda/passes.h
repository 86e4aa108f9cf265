// The passes that amax, cast and quantize are made of. Each kind of source has a file of its own, so that they compile
// side by side.
#pragma once

#include "cuda/finish.cuh"
#include "cuda/state.h"

namespace transcast::cuda {

enum class Kind { plain, activation, gradient };

// Reads what `args` describes and finishes with its amax.
template <Kind>
void amax_pass(const CudaContext&, const CastArgs& args, const Finish&);

// Writes q, q_t and dbias with the scale in device memory. `again`: the data has just been read by amax_pass. A finish
// without a slot writes nothing.
template <Kind>
void cast_pass(const CudaContext&, const CastArgs& args, Global<const float> scale, bool again, const Finish&);

#define TRANSCAST_DECLARE_PASSES(kind)                                          \
  template <>                                                                   \
  void amax_pass<kind>(const CudaContext&, const CastArgs&, const Finish&);     \
  template <>                                                                   \
  void cast_pass<kind>(const CudaContext&, const CastArgs&, Global<const float>, bool, const Finish&);
TRANSCAST_DECLARE_PASSES(Kind::plain)
TRANSCAST_DECLARE_PASSES(Kind::activation)
TRANSCAST_DECLARE_PASSES(Kind::gradient)
#undef TRANSCAST_DECLARE_PASSES

// dbias[c] = the sum of column c of sums [tiles, columns], one row for each tile of so many warps.
void add_sums(const CudaContext&, const float* sums, int64_t tiles, int tile_warps, int64_t columns, float* dbias);

// Calls body with the kind of source as a template argument.
template <class Body>
void visit_kind(const CastArgs& args, Body&& body) {
  if (args.gradient) {
    body(std::integral_constant<Kind, Kind::gradient>{});
  } else if (args.act != Act::none) {
    body(std::integral_constant<Kind, Kind::activation>{});
  } else {
    body(std::integral_constant<Kind, Kind::plain>{});
  }
}

inline float format_max(Format format) {
  return visit(format, [](auto fp8) { return decltype(fp8)::max; });
}

}  // namespace transcast::cuda
