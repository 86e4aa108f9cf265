// Inverse scales as cuBLASLt wants them.
#pragma once

#include "cuda/state.h"

namespace transcast::cuda {

// The scales of an operand whose rows may have been padded to `rows`: the caller's own memory where it fits (one scale;
// row scales without gaps; 1x128 scales with rows side by side, as a transposed tensor has them; 128x128 scales whose
// rows are gapless and multiples of four long), else a copy in workspace memory, where what belongs to padding is zero.
const void* laid_out(const CudaContext&, const InverseScales&, int64_t rows);

}  // namespace transcast::cuda
