// The kernels behind amax, cast and quantize: one over row segments, one over tiles that also writes the transpose.
#pragma once

#include "cuda/rows.cuh"
#include "cuda/tile.cuh"

namespace transcast::cuda {

// ---- Row segments: amax alone, or q too.
//
// Block: 8 warps, 32 rows x 256 columns at a time, 4 consecutive rows per warp.
// Per element: the operands read once, one byte written.

constexpr int kRowsPerWarp = 4, kRowWarps = 8, kRowTile = kRowsPerWarp * kRowWarps;

template <class Source>
struct RowsArgs {
  Source source;
  Extent extent;
  uint32_t tiles;
  bool reverse;  // from the end, where the pass before has just been
  Global<uint8_t> q;
  int64_t q_stride;
  Format format;
  Global<const float> scale;
  Finish finish;  // slot null: nothing to finish
};

struct NoCodes {};  // amax only

template <class Source, class Access, class Fp8>
__global__ void __launch_bounds__(32 * kRowWarps, 1)
    rows_kernel(const __grid_constant__ RowsArgs<Source> args) {
  using T = typename Source::Element;
  constexpr bool kEncode = !std::is_same_v<Fp8, NoCodes>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float scale = 0;
  if constexpr (kEncode) scale = ldg(args.scale, true);
  uint32_t amax = 0;
  for (uint32_t i = blockIdx.x; i < args.tiles; i += gridDim.x) {
    const uint32_t tile = args.reverse ? args.tiles - 1 - i : i;
    const int64_t first = int64_t(tile / args.extent.column_tiles) * kRowTile + warp * kRowsPerWarp;
    const int64_t column = int64_t(tile % args.extent.column_tiles) * kSegment;
    const Global<uint8_t> q = args.q + offset_of(first, args.q_stride, column);
    for_rows<kRowsPerWarp, 1, Access>(
        args.source, args.extent, first, column, lane, [&](int r, int valid, const auto& v) {
#pragma unroll
          for (int part = 0; part < Source::kParts; ++part) amax = amax_of(v[part], amax);
          if constexpr (kEncode) {
            uint32_t codes[2];
            encode8<Fp8>(v[0], scale, args.format, codes);
            store_segment<T>(Access{}, q + r * args.q_stride, own_codes<T>(codes, lane), valid, lane);
          }
        });
  }
  if (args.finish.slot.address == nullptr) return;
  Maxima& maxima = shared<Maxima>();
  publish(maxima, amax);
  __syncthreads();
  finish_block(args.finish, maxima, gridDim.x);
}

// ---- Tiles: q, its transpose, and column sums.
//
// Block: 4, 8 or 16 warps, each with 8 rows x 256 columns; a thread holds 8 rows x 8 columns of codes. Shared memory:
// the tile once, as columns. Per element: the operands read once, two bytes written. Column sums leave as one row of
// partial sums per tile.

template <class Source>
struct TileArgs {
  Source source;
  Extent extent;  // of one part
  Global<uint8_t> q;
  int64_t q_stride;
  Format format;
  Transposed transposed;
  Global<float> sums;  // [row tiles, kParts * columns]
  Global<const float> scale;
};

// Sums over the tile's rows: each thread has those of its warp's rows, the block adds four warps and then pairs of such
// sums, so that a tall tile gives what sums.cu makes of short ones.
template <class T>
__device__ __forceinline__ void store_sums(TileSmem& smem, const float (&sums)[8], Global<float> out, int64_t column,
                                           int64_t columns) {
  constexpr int kPitch = Lanes<T>::kHalves ? 40 : 36;  // consecutive columns of either order lie in different banks
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int e = 0; e < 8; ++e) sts(smem.sums[warp][e * kPitch + lane], sums[e]);
  __syncthreads();
#pragma unroll 1  // two turns at most
  for (int c = threadIdx.x; c < kSegment; c += blockDim.x) {
    const int element = Lanes<T>::kHalves ? c / 128 * 4 + c % 4 : c % 8;
    const int owner = Lanes<T>::kHalves ? c % 128 / 4 : c / 8;
    const auto four = [&](int w) {
      const float(&of_warp)[kMaxWarps][8 * 40] = smem.sums;
      const int at = element * kPitch + owner;
      return ((lds(of_warp[w][at]) + lds(of_warp[w + 1][at])) + lds(of_warp[w + 2][at])) + lds(of_warp[w + 3][at]);
    };
    float sum = four(0);
    if (warps >= 8) sum += four(4);
    if (warps == 16) sum += four(8) + four(12);
    stg(out + (column + c), sum, column + c < columns);
  }
}

// One tile. What its threads publish in smem.maxima lies behind a barrier afterwards.
template <class Source, class Access, class Fp8, bool kSums>
__device__ __forceinline__ void cast_tile(const TileArgs<Source>& args, uint32_t tile, TileSmem& smem) {
  using T = typename Source::Element;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const uint32_t row_tile = tile / args.extent.column_tiles;
  const int64_t tile_row = int64_t(row_tile) * kWarpRows * warps, first = tile_row + warp * kWarpRows;
  const int64_t column = int64_t(tile % args.extent.column_tiles) * kSegment;
  const Global<uint8_t> q = args.q + offset_of(first, args.q_stride, column);
  const float scale = ldg(args.scale, true);
  uint32_t amax = 0;
  uint2 codes[Source::kParts][kWarpRows];
  float sums[Source::kParts][8] = {};
  for_rows<kWarpRows, kWarpRows, Access>(
      args.source, args.extent, first, column, lane, [&](int r, int valid, const auto& v) {
#pragma unroll
        for (int part = 0; part < Source::kParts; ++part) {
          amax = amax_of(v[part], amax);
          if constexpr (kSums) {
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[part][e] += v[part][e];
          }
          uint32_t loaded_codes[2];
          encode8<Fp8>(v[part], scale, args.format, loaded_codes);
          uint2& own = codes[part][r];
          own = own_codes<T>(loaded_codes, lane);
          store_segment<T>(Access{}, q + (r * args.q_stride + part * args.extent.columns), own, valid, lane);
          if (valid == 0) own = make_uint2(0, 0);  // padding of q_t is zero, whatever 0 * scale is
        }
      });
  publish(smem.maxima, amax);
#pragma unroll
  for (int part = 0; part < Source::kParts; ++part) {
    if (part > 0) __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t upper[4], lower[4], upper_columns[4], lower_columns[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        upper[r] = half ? codes[part][r].y : codes[part][r].x;
        lower[r] = half ? codes[part][r + 4].y : codes[part][r + 4].x;
      }
      transpose4x4(upper, upper_columns);
      transpose4x4(lower, lower_columns);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sts(smem.runs[Runs<8>::at(lane, 4 * half + k, warp, warps)], make_uint2(upper_columns[k], lower_columns[k]));
      }
    }
    __syncthreads();
    const int64_t stride = args.transposed.stride;
    const Transposed out{args.transposed.q_t + part * args.extent.columns * stride, stride};
    store_transposed<8>(smem, out, tile_row, column, args.extent.columns,
                        [](int lane) { return 8 * Lanes<T>::octet(lane); });
    if constexpr (kSums) {
      __syncthreads();
      const int64_t all_columns = Source::kParts * args.extent.columns;
      store_sums<T>(smem, sums[part], args.sums + (row_tile * all_columns + part * args.extent.columns), column,
                    args.extent.columns);
    }
  }
}

// Two parts of codes and sums need more registers than 16 warps have; their q_t leaves in half lines.
template <class Source>
constexpr int kTileWarps = Source::kParts == 2 ? kMaxWarps / 2 : kMaxWarps;

template <class Source, class Access, class Fp8, bool kSums>
__global__ void __launch_bounds__(32 * kTileWarps<Source>, 1)
    tiles_kernel(const __grid_constant__ TileArgs<Source> args, bool reverse, const __grid_constant__ Finish finish) {
  TileSmem& smem = shared<TileSmem>();
  cast_tile<Source, Access, Fp8, kSums>(args, reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x, smem);
  if (finish.slot.address != nullptr) finish_block(finish, smem.maxima, gridDim.x);
}

}  // namespace transcast::cuda
