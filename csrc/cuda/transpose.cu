// FP8 transpose, padded.
//
// Block: 4, 8 or 16 warps, each with 8 rows x 256 columns: a lane loads 16 codes of 4 rows, two half warps hold 8 rows.
// The tile leaves through shared memory as in tile.cuh. Per element: one byte read, one written.
#include "cuda/grid.h"
#include "cuda/launch.cuh"
#include "cuda/tile.cuh"

namespace transcast::cuda {
namespace {

struct Args {
  Input q;
  int64_t rows, columns;
  Transposed out;
  uint32_t column_tiles;
};

constexpr int kLaneRows = 4, kLaneCodes = 16;

__device__ __forceinline__ void load_codes(const Input&, Global<const uint8_t> start, int valid, int lane,
                                           Raw<Aligned, 1>& raw) {
  const int first = kLaneCodes * (lane % 16);
  raw.chunk[0] = ldg((start + first).as<const uint4>(), first < valid);
}

__device__ __forceinline__ void load_codes(const Input& q, Global<const uint8_t> start, int valid, int lane,
                                           Raw<Unaligned, 1>& raw) {
  load_window<16, 1>(q, start, valid, lane, raw.chunk[0], raw.next[0]);
}

__device__ __forceinline__ uint4 codes_in_place(const Raw<Aligned, 1>& raw, Global<const uint8_t>, int, int) {
  return raw.chunk[0];
}

__device__ __forceinline__ uint4 codes_in_place(const Raw<Unaligned, 1>& raw, Global<const uint8_t> start, int valid,
                                                int lane) {
  return window<16>(raw.chunk[0], raw.next[0], start, valid, lane);
}

template <class Access>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) transpose_kernel(const __grid_constant__ Args args) {
  TileSmem& smem = shared<TileSmem>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int half = lane / 16, sixteen = lane % 16;  // rows 4 * half..., columns 16 * sixteen...
  const int64_t tile_row = int64_t(blockIdx.x / args.column_tiles) * kWarpRows * warps;
  const int64_t column = int64_t(blockIdx.x % args.column_tiles) * kSegment;
  const int64_t first = tile_row + warp * kWarpRows + half * kLaneRows;
  const int columns = args.columns - column < kSegment ? int(args.columns - column) : kSegment;
  const Global<const uint8_t> start = args.q.data + offset_of(first, args.q.stride, column);
  const auto valid = [&](int r) { return first + r < args.rows ? columns : 0; };
  Raw<Access, 1> raw[kLaneRows];
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) load_codes(args.q, start + r * args.q.stride, valid(r), lane, raw[r]);
  uint4 rows[kLaneRows];
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) rows[r] = codes_in_place(raw[r], start + r * args.q.stride, valid(r), lane);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint32_t in[4], out[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      in[r] = word == 0 ? rows[r].x : word == 1 ? rows[r].y : word == 2 ? rows[r].z : rows[r].w;
    }
    transpose4x4(in, out);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint2& run = smem.runs[Runs<16>::at(sixteen, 4 * word + k, warp, warps)];
      sts(half ? run.y : run.x, out[k]);
    }
  }
  __syncthreads();
  store_transposed<16>(smem, args.out, tile_row, column, args.columns, [](int lane) { return 16 * lane; });
}

}  // namespace
}  // namespace transcast::cuda

namespace transcast {

void transpose(const Context& context, const TransposeArgs& args) {
  using namespace cuda;
  const Codes& q = args.q;
  if (q.rows == 0 || q.cols == 0) return;
  const int64_t column_tiles = ceil_div(q.cols, kSegment);
  const int warps = tile_warps(q.rows, column_tiles, figures(context).multiprocessors);
  const uint32_t blocks = block_count(ceil_div(q.rows, kWarpRows * warps) * column_tiles);
  const Input input{{q.data}, {q.data + (q.rows - 1) * q.stride + q.cols}, q.stride};
  const Args device{input, q.rows, q.cols, {{args.q_t}, round_up(q.rows, kPadding)}, uint32_t(column_tiles)};
  const bool aligned = in_whole_chunks(q.data, q.rows, q.stride) && q.cols % 16 == 0;
  launch(aligned ? transpose_kernel<Aligned> : transpose_kernel<Unaligned>, dim3(blocks), dim3(32 * warps),
         sizeof(TileSmem), stream_of(context), device);
}

}  // namespace transcast
