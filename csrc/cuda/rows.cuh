// How kernels walk over the rows of a source: what of a matrix lies in a segment, and several rows loaded at once.
#pragma once

#include "cuda/source.cuh"

namespace transcast::cuda {

constexpr int64_t kUnbounded = INT64_MAX;

// How many columns of some consecutive rows lie in a segment: clamp(left - 256 row, 0, width) of the row-th.
struct Valid {
  int left, width;
  TRANSCAST_HD int operator[](int row) const {
    const int n = left - row * kSegment;
    return n < 0 ? 0 : n < width ? n : width;
  }
};

// A matrix as kernels see it. Contiguous data of any shape is a matrix of 256 columns whose last row may be short.
struct Extent {
  int64_t rows, columns;
  int64_t elements;       // contiguous data; else kUnbounded
  uint32_t column_tiles;  // at least 1
  // left = 256 * (whole rows before the last one) + what the last one has: every row but the last has its width then.
  TRANSCAST_HD Valid valid_from(int64_t row, int64_t column) const {
    const int64_t rows_left = rows - row, columns_left = columns - column;
    const int width = columns_left < kSegment ? int(columns_left) : kSegment;
    const int last = elements == kUnbounded ? width : int(elements - (rows - 1) * kSegment);
    const int whole = rows_left > kSegment ? kSegment : rows_left < 1 ? -1 : int(rows_left) - 1;
    return {whole * kSegment + last, width};
  }
};

// Nothing uses the first row before all others are loaded, so that their loads are issued together: ptxas spreads them
// over the first row's arithmetic where that is long, and each is waited for by itself. What is added is zero, as
// blocks have one dimension; the compiler does not know.
template <class Access, int kCount, int kBatch, int kOperands>
__device__ __forceinline__ void keep_together(Raw<Access, kCount> (&raw)[kBatch][kOperands]) {
  uint32_t others = 0;
#pragma unroll
  for (int r = 1; r < kBatch; ++r) {
#pragma unroll
    for (int i = 0; i < kOperands; ++i) others |= raw[r][i].chunk[0].x;
  }
  others &= blockDim.y - 1;
  uint4& first = raw[0][0].chunk[0];
  first.x |= others;
  first.y |= others;
  first.z |= others;
  first.w |= others;
}

// body(r, valid, v) for the kRows rows from `first`, r counting from 0: the values of this lane. Rows are loaded a
// batch at a time, before the first of them is used; kUnroll batches are unrolled.
template <int kRows, int kUnroll, class Access, class Source, class Body>
__device__ __forceinline__ void for_rows(const Source& source, const Extent& extent, int64_t first, int64_t column,
                                         int lane, Body body) {
  using T = typename Source::Element;
  constexpr int kOperands = Source::kOperands;
  // Bringing unaligned elements into place takes registers, too.
  constexpr int kShare = std::is_same_v<Access, Unaligned> ? 4 * Chunks<T>::kCount : 1;
  constexpr int kMost = Source::kBatch > kShare ? Source::kBatch / kShare : 1;
  constexpr int kBatch = kMost < kRows ? kMost : kRows;
  const Valid valid = extent.valid_from(first, column);
  Global<const uint8_t> start[kOperands];
#pragma unroll
  for (int i = 0; i < kOperands; ++i) {
    start[i] = source.operand[i].data + offset_of(first, source.operand[i].stride, column) * kElementBytes<T>;
  }
  const auto row_start = [&](int operand, int row) {
    return start[operand] + row * source.operand[operand].stride * kElementBytes<T>;
  };
#pragma unroll kUnroll
  for (int batch = 0; batch < kRows; batch += kBatch) {
    Raw<Access, Chunks<T>::kCount> raw[kBatch][kOperands];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
#pragma unroll
      for (int i = 0; i < kOperands; ++i) {
        raw[r][i] = load_segment<T>(Access{}, source.operand[i], row_start(i, batch + r), valid[batch + r], lane);
      }
    }
    if constexpr (Source::kLong && kBatch > 1) keep_together(raw);
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      Chunks<T> in[kOperands];
#pragma unroll
      for (int i = 0; i < kOperands; ++i) {
        in[i] = in_place<T>(raw[r][i], row_start(i, batch + r), valid[batch + r], lane);
      }
      float v[Source::kParts][8];
      source.values(in, v);
      body(batch + r, valid[batch + r], v);
    }
  }
}

}  // namespace transcast::cuda
