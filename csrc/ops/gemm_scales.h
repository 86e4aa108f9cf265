// The inverse scales of a GEMM's operands: which granularity they have follows from dtype and shape.
#pragma once

#include "ops/tensors.h"

namespace transcast::ops {

// Sets args.a_scale_inv and args.b_scale_inv for the operands in args.
void set_scales(const char* op, const Tensor& a_scale_inv, const Tensor& b_scale_inv, const Tensor& like,
                GemmArgs& args);

}  // namespace transcast::ops
