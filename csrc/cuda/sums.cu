// Column sums of tiles to column sums of the matrix.
//
// Block: 8 warps over 32 columns, one per lane; each warp adds a slab of rows, the first one then adds the slabs. The
// order depends on the shape alone: whatever height the device gives the tiles, what is added is 128 rows of the
// matrix, which store_sums and this kernel put together in the same pairs.
#include "cuda/grid.h"
#include "cuda/launch.cuh"
#include "cuda/passes.h"
#include "cuda/tile.cuh"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8;

struct Smem {
  float slab[kWarps][32];
};

__global__ void __launch_bounds__(32 * kWarps)
    add_sums_kernel(Global<const float> sums, int64_t tiles, int per_group, int64_t columns, Global<float> dbias) {
  Smem& smem = shared<Smem>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = int64_t(blockIdx.x) * 32 + lane;
  const int64_t groups = ceil_div(tiles, per_group), slab = ceil_div(groups, kWarps);
  const int64_t first = warp * slab, last = first + slab < groups ? first + slab : groups;
  float sum = 0;
#pragma unroll 1  // four loads per turn are in flight
  for (int64_t group = first; group < last; ++group) {
    float part[kMaxWarps / kSumWarps];
#pragma unroll
    for (int i = 0; i < kMaxWarps / kSumWarps; ++i) {
      const int64_t tile = group * per_group + i;
      part[i] = ldg(sums + offset_of(tile, columns, column), i < per_group && tile < tiles && column < columns);
    }
    sum += (part[0] + part[1]) + (part[2] + part[3]);
  }
  sts(smem.slab[warp][lane], sum);
  __syncthreads();
  if (warp != 0) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += lds(smem.slab[w][lane]);
  stg(dbias + column, sum, column < columns);
}

}  // namespace

void add_sums(const CudaContext& context, const float* sums, int64_t tiles, int tile_warps, int64_t columns,
              float* dbias) {
  if (columns == 0) return;
  launch(add_sums_kernel, dim3(block_count(ceil_div(columns, 32))), dim3(32 * kWarps), sizeof(Smem),
         stream_of(context), Global<const float>{sums}, tiles, kMaxWarps / tile_warps, columns, Global<float>{dbias});
}

}  // namespace transcast::cuda
