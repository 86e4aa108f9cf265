// Column sums of tiles to column sums of the matrix.
//
// Block: 8 warps over 32 columns, one per lane; each warp adds a slab of rows, the first one then adds the slabs. The order
// depends on the shape alone.
#include "cuda/launch.cuh"
#include "cuda/passes.h"
#include "cuda/segment.cuh"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8;

struct Smem {
  float slab[kWarps][32];
};

__global__ void __launch_bounds__(32 * kWarps)
    add_sums_kernel(Global<const float> sums, int64_t rows, int64_t columns, Global<float> dbias) {
  Smem& smem = shared<Smem>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = int64_t(blockIdx.x) * 32 + lane;
  const int64_t slab = (rows + kWarps - 1) / kWarps;
  const int64_t first = warp * slab, last = first + slab < rows ? first + slab : rows;
  float sum = 0;
  for (int64_t row = first; row < last; ++row) sum += ldg(sums + offset_of(row, columns, column), column < columns);
  sts(smem.slab[warp][lane], sum);
  __syncthreads();
  if (warp != 0) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += lds(smem.slab[w][lane]);
  stg(dbias + column, sum, column < columns);
}

}  // namespace

void add_sums(const CudaContext& context, const float* sums, int64_t rows, int64_t columns, float* dbias) {
  if (columns == 0) return;
  launch(add_sums_kernel, dim3(uint32_t((columns + 31) / 32)), dim3(32 * kWarps), sizeof(Smem), stream_of(context),
         Global<const float>{sums}, rows, columns, Global<float>{dbias});
}

}  // namespace transcast::cuda
