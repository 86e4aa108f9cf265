// The transpose of a tile in shared memory. Each warp has 8 rows of 256 columns; columns leave as runs of 8 bytes per
// warp: 16 warps make whole 128-byte lines of q_t, 8 and 4 warps two sectors of one, or one.
#pragma once

#include "cuda/finish.cuh"

namespace transcast::cuda {

constexpr int kWarpRows = 8;
constexpr int kSumWarps = 4;  // of the smallest tile: column sums of larger ones are put together from these

// The tallest tile, for whole lines of q_t, that still gives every multiprocessor a block.
inline int tile_warps(int64_t rows, int64_t column_tiles, int multiprocessors, int most = kMaxWarps) {
  int warps = most;
  while (warps > kSumWarps && ceil_div(rows, kWarpRows * warps) * column_tiles < multiprocessors) warps /= 2;
  return warps;
}

struct TileSmem {
  Maxima maxima;
  union {
    uint2 runs[kSegment * kMaxWarps];  // 8 rows of one column
    float sums[kMaxWarps][8 * 40];     // dbias, after the runs have left
  };
};

// Where the run of (column, warp) lies. Columns are ordered by (column % kGroup, column / kGroup), the order in which
// the lanes of a store hold them; XOR with the lane spreads one warp's runs over all banks, and keeps pairs of runs
// together so that the reads are 16 bytes wide and free of conflicts too.
template <int kGroup>  // neighbouring columns that one lane holds
struct Runs {
  static constexpr int kLanes = kSegment / kGroup;
  TRANSCAST_HD static int swizzle(int lane, int warps) {
    return int(uint32_t(lane * warps) / uint32_t(kMaxWarps)) & (warps - 1);
  }
  TRANSCAST_HD static int at(int lane, int column_in_group, int warp, int warps) {
    return (column_in_group * kLanes + lane) * warps + (warp ^ swizzle(lane, warps));
  }
};

struct Transposed {
  Global<uint8_t> q_t;
  int64_t stride;  // round_up(rows, 16)
};

// Writes columns [column, column + kSegment) of a tile of 8 * warps rows from `row`; column_of(lane) is the first of
// the lane's kGroup neighbouring columns. Each thread writes the runs of two warps; those of all warps are written by
// neighbouring threads of one warp.
template <int kGroup, class ColumnOf>
__device__ __forceinline__ void store_transposed(const TileSmem& smem, const Transposed& out, int64_t row,
                                                 int64_t column, int64_t columns, ColumnOf column_of) {
  const int warps = blockDim.x / 32, pairs = warps / 2;
  const int log_pairs = 1 + (warps >= 8) + (warps >= 16);  // a division by pairs takes twenty instructions
  constexpr int kPasses = kSegment / 2 / 32;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int index = pass * blockDim.x + threadIdx.x;
    const int pair = index & (pairs - 1);
    const uint32_t slot = uint32_t(index) >> log_pairs;
    const int lane = int(slot % Runs<kGroup>::kLanes), in_group = int(slot / Runs<kGroup>::kLanes);
    const int swizzle = Runs<kGroup>::swizzle(lane, warps);
    const uint2* runs = &smem.runs[slot * warps + 2 * (pair ^ (swizzle >> 1))];
    const uint4 both = lds(*reinterpret_cast<const uint4*>(runs));
    const uint4 ordered = swizzle & 1 ? make_uint4(both.z, both.w, both.x, both.y) : both;
    const int64_t c = column + column_of(lane) + in_group, r = row + 16 * pair;
    stg((out.q_t + offset_of(c, out.stride, r)).as<uint4>(), ordered, c < columns && r < out.stride);
  }
}

}  // namespace transcast::cuda
