#include "cuda/gemm_scales.h"

#include "cuda/launch.cuh"
#include "cuda/vec.cuh"

namespace transcast::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kTileRows = 128, kTileColumns = 4;  // of 1x32 scales

// Where cuBLASLt looks for scale (row, column): [column, row] for rows and 1x128 blocks, rows of a multiple of four for
// 128x128, tiles of 128 x 4 for 1x32. `leading` counts scales from one column, row, or row of tiles to the next.
struct Arrangement {
  Scaling scaling;
  int64_t count, leading;
};

Arrangement arrangement_of(const InverseScales& s, int64_t rows) {
  switch (s.scaling) {
    case Scaling::block_128x128: {
      const int64_t leading = round_up(s.cols, 4);
      return {s.scaling, s.rows * leading, leading};
    }
    case Scaling::mx_1x32: {
      const int64_t leading = round_up(s.cols, kTileColumns) * kTileRows;
      return {s.scaling, round_up(rows, kTileRows) / kTileRows * leading, leading};
    }
    default: return {s.scaling, rows * s.cols, rows};
  }
}

bool is_arranged(const InverseScales& s, const Arrangement& arrangement) {
  if (s.scaling == Scaling::tensor) return true;
  if (reinterpret_cast<uintptr_t>(s.data) % 16 != 0 || arrangement.count != s.rows * s.cols) return false;
  const int64_t row_stride = s.scaling == Scaling::block_128x128 ? arrangement.leading : 1;
  const int64_t col_stride = s.scaling == Scaling::block_128x128 ? 1 : arrangement.leading;
  return s.scaling != Scaling::mx_1x32 && (s.rows <= 1 || s.row_stride == row_stride) &&
         (s.cols <= 1 || s.col_stride == col_stride);
}

template <class T>
struct ScaleArgs {
  Arrangement to;
  Global<const T> in;
  int64_t rows, cols, row_stride, col_stride;
  Global<T> out;
};

template <class T>
__global__ void __launch_bounds__(kThreads) arrange_kernel(const __grid_constant__ ScaleArgs<T> args) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t outer = i / args.to.leading, inner = i % args.to.leading;
  int64_t row = inner, col = outer;
  if (args.to.scaling == Scaling::block_128x128) {
    row = outer;
    col = inner;
  } else if (args.to.scaling == Scaling::mx_1x32) {
    // A tile holds its rows 0, 32, 64, 96, then 1, 33, ...: four scales of each.
    const int64_t tile = inner / (kTileRows * kTileColumns);
    const int in_tile = int(inner % (kTileRows * kTileColumns));
    row = outer * kTileRows + in_tile % 16 / 4 * 32 + in_tile / 16;
    col = tile * kTileColumns + in_tile % 4;
  }
  const bool inside = i < args.to.count, is_scale = inside && row < args.rows && col < args.cols;
  stg(args.out + i, ldg(args.in + (row * args.row_stride + col * args.col_stride), is_scale), inside);
}

template <class T>
const void* arranged(const CudaContext& context, const InverseScales& s, const Arrangement& to) {
  auto* out = static_cast<T*>(context.allocate(to.count * int64_t(sizeof(T)), context.state));
  const ScaleArgs<T> args{to, {static_cast<const T*>(s.data)}, s.rows, s.cols, s.row_stride, s.col_stride, {out}};
  const auto blocks = uint32_t((to.count + kThreads - 1) / kThreads);
  launch(arrange_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream_of(context), args);
  return out;
}

}  // namespace

const void* laid_out(const CudaContext& context, const InverseScales& s, int64_t rows) {
  const Arrangement to = arrangement_of(s, rows);
  if (is_arranged(s, to)) return s.data;
  return s.scaling == Scaling::mx_1x32 ? arranged<uint8_t>(context, s, to) : arranged<float>(context, s, to);
}

}  // namespace transcast::cuda
