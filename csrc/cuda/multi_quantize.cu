// quantize_transpose of many matrices: one launch for all amaxes, one for all casts, however many matrices there are
// and whatever their shapes; and another pair for those that are not aligned, so that one of them does not slow all
// others down. Each block looks up the matrix that its tile belongs to in a table which travels as the kernel's
// argument: nothing to copy first, and nothing that a graph replay could find changed.
#include <algorithm>
#include <vector>

#include "cuda/error.h"
#include "cuda/grid.h"
#include "cuda/passes.cuh"

namespace transcast {
namespace cuda {
namespace {

constexpr int kTileRows = kWarpRows * kMaxWarps;
// What fits 32 KiB of kernel arguments; more matrices take another pair of launches.
constexpr int kJobs = 400;

struct Job {
  Input x;
  int64_t rows, columns;
  Global<uint8_t> q, q_t;
  Global<float> scale_inv, scale_inv_t;
  uint32_t first_tile;
};

struct Jobs {
  Job job[kJobs];
  uint32_t count;
  Global<Slot> slots;
  ScaleRule rule;
  float format_max;
};
static_assert(sizeof(Jobs) <= 32764);

// The last job whose first tile is not behind this block.
__device__ __forceinline__ uint32_t job_of(const Jobs& jobs, uint32_t block) {
  uint32_t low = 0, high = jobs.count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (jobs.job[middle].first_tile <= block ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ Extent extent_of(const Job& job) {
  const uint32_t column_tiles = uint32_t(ceil_div(job.columns, kSegment));
  return {job.rows, job.columns, kUnbounded, column_tiles ? column_tiles : 1};
}

TRANSCAST_HD int64_t tiles_of(int64_t rows, int64_t columns) {
  const int64_t row_tiles = ceil_div(rows, kTileRows), column_tiles = ceil_div(columns, kSegment);
  return row_tiles == 0 || column_tiles == 0 ? 1 : row_tiles * column_tiles;
}

template <class T, class Access>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) multi_amax_kernel(const __grid_constant__ Jobs jobs) {
  Maxima& maxima = shared<Maxima>();
  const uint32_t index = job_of(jobs, blockIdx.x);
  const Job& job = jobs.job[index];
  Plain<T> source;
  source.operand[0] = job.x;
  const Extent extent = extent_of(job);
  const uint32_t tile = blockIdx.x - job.first_tile;
  const int64_t first = int64_t(tile / extent.column_tiles) * kTileRows + threadIdx.x / 32 * kWarpRows;
  const int64_t column = int64_t(tile % extent.column_tiles) * kSegment;
  uint32_t amax = 0;
  for_rows<kWarpRows, 1, Access>(source, extent, first, column, threadIdx.x % 32,
                                 [&](int, int, const auto& v) { amax = amax_of(v[0], amax); });
  publish(maxima, amax);
  __syncthreads();
  Finish finish{};
  finish.slot = jobs.slots + index;
  finish.rule = jobs.rule;
  finish.format_max = jobs.format_max;
  finish.scale_inv = job.scale_inv;
  finish.scale_inv_t = job.scale_inv_t;
  finish_block(finish, maxima, uint32_t(tiles_of(job.rows, job.columns)));
}

template <class T, class Access, class Fp8>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) multi_cast_kernel(const __grid_constant__ Jobs jobs) {
  TileSmem& smem = shared<TileSmem>();
  const uint32_t block = gridDim.x - 1 - blockIdx.x;  // the matrices read last are the ones still in L2
  const uint32_t index = job_of(jobs, block);
  const Job& job = jobs.job[index];
  TileArgs<Plain<T>> args{};
  args.source.operand[0] = job.x;
  args.extent = extent_of(job);
  args.q = job.q;
  args.q_stride = job.columns;
  args.transposed = {job.q_t, round_up(job.rows, kPadding)};
  args.scale = {&(jobs.slots + index).address->scale};
  cast_tile<Plain<T>, Access, Fp8, false>(args, block - job.first_tile, smem);
}

Job job_of(const CastArgs& args, uint32_t first_tile) {
  const Matrix& x = args.x;
  return {input(x), x.rows, x.cols, {args.q}, {args.q_t}, {args.scale_inv}, {args.scale_inv_t}, first_tile};
}

template <class T, class Access>
void run(const CudaContext& context, const std::vector<const CastArgs*>& matrices, ScaleRule rule) {
  if (matrices.empty()) return;
  const Format format = matrices[0]->format;
  const int64_t bytes = int64_t(matrices.size() * sizeof(Slot));
  Slot* slots = static_cast<Slot*>(context.allocate(bytes, context.state));
  check(cudaMemsetAsync(slots, 0, size_t(bytes), stream_of(context)), "cudaMemsetAsync");
  for (size_t done = 0; done < matrices.size(); done += kJobs) {
    Jobs jobs{};
    jobs.count = uint32_t(std::min<size_t>(kJobs, matrices.size() - done));
    jobs.slots = {slots + done};
    jobs.rule = rule;
    jobs.format_max = format_max(format);
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < jobs.count; ++i) {
      const CastArgs& args = *matrices[done + i];
      jobs.job[i] = job_of(args, tiles);
      tiles = block_count(tiles + tiles_of(args.x.rows, args.x.cols));
    }
    const dim3 grid(tiles), block(32 * kMaxWarps);
    launch(multi_amax_kernel<T, Access>, grid, block, sizeof(Maxima), stream_of(context), jobs);
    visit(format, [&](auto fp8) {
      launch(multi_cast_kernel<T, Access, decltype(fp8)>, grid, block, sizeof(TileSmem), stream_of(context), jobs);
    });
  }
}

template <class T>
void run_all_of(const CudaContext& context, const CastArgs* args, int64_t n, ScaleRule rule) {
  std::vector<const CastArgs*> aligned, unaligned;
  for (int64_t i = 0; i < n; ++i) {
    const Matrix& x = args[i].x;
    if (x.dtype == T::dtype) (is_aligned<T>(x) && x.cols % 8 == 0 ? aligned : unaligned).push_back(&args[i]);
  }
  run<T, Aligned>(context, aligned, rule);
  run<T, Unaligned>(context, unaligned, rule);
}

}  // namespace
}  // namespace cuda

void multi_quantize(const Context& context, const CastArgs* args, int64_t n, ScaleRule rule) {
  using namespace cuda;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    visit(dtype, [&](auto t) { run_all_of<decltype(t)>(context, args, n, rule); });
  }
}

}  // namespace transcast
