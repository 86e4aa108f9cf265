// What cuBLASLt reads, as it wants it: the caller's own memory where that fits, else a copy in workspace memory.
#pragma once

#include "cuda/state.h"

namespace transcast::cuda {

// A copy with zeros for padding: rows to a multiple of 16, columns to one of `multiple`. In workspace memory.
Codes padded(const CudaContext&, const Codes&, int64_t multiple);

// A bias in the dtype that cuBLASLt adds and on 16 bytes: the caller's own, or a copy in workspace memory.
const void* usable_bias(const CudaContext&, const GemmArgs&);

// The scales of an operand whose rows may have been padded to `rows`: the caller's own memory where it fits (one scale;
// row scales without gaps; 1x128 scales with rows side by side, as a transposed tensor has them; 128x128 scales whose
// rows are gapless and multiples of four long), else a copy in workspace memory, where what belongs to padding is zero.
const void* laid_out(const CudaContext&, const InverseScales&, int64_t rows);

}  // namespace transcast::cuda
