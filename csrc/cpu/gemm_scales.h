// The inverse scales of GEMM operands, one by one.
#pragma once

#include "backend.h"

namespace transcast::cpu {

// Blocks along K have scales of their own: they multiply the codes, before the sums.
inline bool is_blockwise(Scaling scaling) { return scaling != Scaling::tensor && scaling != Scaling::row; }

inline int64_t columns_per_scale(Scaling scaling) { return scaling == Scaling::mx_1x32 ? kMxBlock : kBlock; }

inline float value_of(const InverseScales& s, int64_t row, int64_t col) {
  const int64_t at = row * s.row_stride + col * s.col_stride;
  return s.scaling == Scaling::mx_1x32 ? decode_e8m0(static_cast<const uint8_t*>(s.data)[at])
                                       : static_cast<const float*>(s.data)[at];
}

// Of the block that element (row, col) of the operand is in.
inline float block_scale(const InverseScales& s, int64_t row, int64_t col) {
  return value_of(s, s.scaling == Scaling::block_128x128 ? row / kBlock : row, col / columns_per_scale(s.scaling));
}

}  // namespace transcast::cpu
