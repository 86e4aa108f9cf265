#include "cuda/gemm_operands.h"

#include "cuda/gemm_values.cuh"
#include "cuda/grid.h"
#include "cuda/launch.cuh"
#include "cuda/segment.cuh"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

// ---- padding: a warp copies 512 columns of a row.

struct PadArgs {
  Input in;
  int64_t rows, columns, padded_rows, padded_columns;
  Global<uint8_t> out;
};

__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ PadArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t pieces = ceil_div(args.padded_columns, 512), all = args.padded_rows * pieces;
  for (int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; i < all; i += int64_t(gridDim.x) * kWarps) {
    const int64_t row = i / pieces, column = i % pieces * 512, left = args.columns - column;
    const int valid = row >= args.rows || left < 0 ? 0 : left < 512 ? int(left) : 512;
    const Global<const uint8_t> start = args.in.data + offset_of(row, args.in.stride, column);
    uint4 chunk, next;
    load_window<32, 1>(args.in, start, valid, lane, chunk, next);
    const uint4 codes = window<32>(chunk, next, start, valid, lane);
    const int64_t at = column + 16 * lane;
    stg((args.out + offset_of(row, args.padded_columns, at)).as<uint4>(), codes, at < args.padded_columns);
  }
}

// ---- bias

__global__ void __launch_bounds__(kThreads)
    bias_kernel(Global<const uint8_t> bias, DType from, DType to, int64_t n, Global<uint8_t> out) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  store(out, to, i, load(bias, from, i, i < n), i < n);
}

// ---- inverse scales

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
      return {s.scaling, ceil_div(rows, kTileRows) * leading, leading};
    }
    default: return {s.scaling, rows * s.cols, rows};
  }
}

bool is_arranged(const InverseScales& s, const Arrangement& arrangement) {
  if (s.scaling == Scaling::tensor) return true;
  if (!at_whole_chunk(s.data) || arrangement.count != s.rows * s.cols) return false;
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
  const uint32_t blocks = block_count(ceil_div(to.count, kThreads));
  launch(arrange_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream_of(context), args);
  return out;
}

}  // namespace

Codes padded(const CudaContext& context, const Codes& in, int64_t multiple) {
  const int64_t rows = round_up(in.rows, kPadding), columns = round_up(in.cols, multiple);
  auto* out = static_cast<uint8_t*>(context.allocate(rows * columns, context.state));
  const Input input{{in.data}, {in.data + (in.rows - 1) * in.stride + in.cols}, in.stride};
  const PadArgs args{input, in.rows, in.cols, rows, columns, {out}};
  const uint32_t blocks = blocks_in_turns(context, ceil_div(rows * ceil_div(columns, 512), kWarps));
  launch(pad_kernel, dim3(blocks), dim3(kThreads), 0, stream_of(context), args);
  return {out, in.format, rows, columns, columns};
}

const void* usable_bias(const CudaContext& context, const GemmArgs& args) {
  if (args.bias == nullptr) return nullptr;
  if (args.bias_dtype == args.bias_rounding && at_whole_chunk(args.bias)) return args.bias;
  const int64_t n = args.b.rows;
  auto* out = static_cast<uint8_t*>(context.allocate(n * int64_t(size_of(args.bias_rounding)), context.state));
  launch(bias_kernel, dim3(block_count(ceil_div(n, kThreads))), dim3(kThreads), 0, stream_of(context),
         Global<const uint8_t>{static_cast<const uint8_t*>(args.bias)}, args.bias_dtype, args.bias_rounding, n,
         Global<uint8_t>{out});
  return out;
}

const void* laid_out(const CudaContext& context, const InverseScales& s, int64_t rows) {
  const Arrangement to = arrangement_of(s, rows);
  if (is_arranged(s, to)) return s.data;
  return s.scaling == Scaling::mx_1x32 ? arranged<uint8_t>(context, s, to) : arranged<float>(context, s, to);
}

}  // namespace transcast::cuda
