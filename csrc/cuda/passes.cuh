// From CastArgs to launches, for one source template. Which kernels exist is decided here and nowhere else.
#pragma once

#include "core/check.h"
#include "cuda/cast.cuh"
#include "cuda/passes.h"

namespace transcast::cuda {

// Blocks of the segment kernel that are resident at once; more would only add to the atomics at the end.
constexpr int64_t kBlocksPerMultiprocessor = 8;

inline Input input(const Matrix& m, const void* somewhere) {
  // An empty matrix has no address; arithmetic on one is all that will be done with it.
  const auto* data = static_cast<const uint8_t*>(m.data ? m.data : somewhere);
  const bool empty = m.rows == 0 || m.cols == 0;
  const int64_t bytes = empty ? 0 : ((m.rows - 1) * m.stride + m.cols) * int64_t(size_of(m.dtype));
  return {{data}, {data + bytes}, m.stride};
}

template <class T>
inline bool is_aligned(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && (m.rows <= 1 || m.stride * kElementBytes<T> % 16 == 0);
}

inline bool is_contiguous(const Matrix& m) { return m.rows <= 1 || m.stride == m.cols; }

inline uint32_t ceil_div(int64_t n, int64_t d) { return uint32_t((n + d - 1) / d); }

// A source's operands as matrices, in its order.
template <class Source>
struct Operands {
  const Matrix* matrix[Source::kOperands];

  bool contiguous() const {
    bool all = true;
    for (const Matrix* m : matrix) all = all && is_contiguous(*m);
    return all;
  }
  bool aligned() const {
    bool all = true;
    for (const Matrix* m : matrix) all = all && is_aligned<typename Source::Element>(*m);
    return all;
  }
};

template <class Source>
Source source_of(const Operands<Source>& operands, const CastArgs& args) {
  Source source;
  for (int i = 0; i < Source::kOperands; ++i) source.operand[i] = input(*operands.matrix[i], args.scale_inv);
  if constexpr (std::is_same_v<Source, Activation<typename Source::Element>> ||
                std::is_same_v<Source, ActivationGradient<typename Source::Element>>) {
    source.act = args.act;
  }
  return source;
}

template <class Source>
struct Passes {
  using T = typename Source::Element;

  // Contiguous operands lose their shape, and ragged rows with it.
  static RowsArgs<Source> rows(const CastArgs& args, const Operands<Source>& operands, bool& aligned) {
    RowsArgs<Source> rows{};
    rows.source = source_of(operands, args);
    rows.q = {args.q};
    const Matrix& x = args.x;
    aligned = operands.aligned();
    if (operands.contiguous()) {
      const int64_t elements = x.rows * x.cols;
      rows.extent = {ceil_div(elements, kSegment), kSegment, elements, 1};
      rows.q_stride = kSegment;
      for (Input& operand : rows.source.operand) operand.stride = kSegment;
      aligned = aligned && elements % 8 == 0;
    } else {
      rows.extent = {x.rows, x.cols, kUnbounded, ceil_div(x.cols, kSegment)};
      rows.q_stride = x.cols;
      aligned = aligned && x.cols % 8 == 0;
    }
    if (rows.extent.column_tiles == 0) rows.extent.column_tiles = 1;
    rows.tiles = ceil_div(rows.extent.rows, kRowTile) * rows.extent.column_tiles;
    return rows;
  }

  template <class Fp8>
  static void launch_rows(const CudaContext& context, const RowsArgs<Source>& rows, bool aligned) {
    const int64_t most = kBlocksPerMultiprocessor * figures(context).multiprocessors;
    const dim3 grid(uint32_t(rows.tiles < 1 ? 1 : rows.tiles < most ? rows.tiles : most));
    const auto kernel = aligned ? rows_kernel<Source, Aligned, Fp8> : rows_kernel<Source, Unaligned, Fp8>;
    launch(kernel, grid, dim3(32 * kRowWarps), sizeof(Maxima), stream_of(context), rows);
  }

  static void amax(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
                   const Finish& finish) {
    bool aligned;
    RowsArgs<Source> rows = Passes::rows(args, operands, aligned);
    rows.finish = finish;
    launch_rows<NoCodes>(context, rows, aligned);
  }

  static bool fits_l2(const CudaContext& context, const CastArgs& args) {
    return args.x.rows * args.x.cols * kElementBytes<T> * Source::kOperands <= figures(context).l2_bytes;
  }

  template <class Fp8>
  static void cast(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
                   Global<const float> scale, bool again, const Finish& finish) {
    bool aligned;
    RowsArgs<Source> rows = Passes::rows(args, operands, aligned);
    rows.scale = scale;
    rows.finish = finish;
    rows.reverse = again && fits_l2(context, args);
    launch_rows<Fp8>(context, rows, aligned);
  }

  template <class Fp8, bool kSums>
  static void cast_transpose(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
                             Global<const float> scale, bool again, const Finish& finish) {
    const Matrix& x = args.x;
    const uint32_t column_tiles = x.cols == 0 ? 1 : ceil_div(x.cols, kSegment);
    const int warps = tile_warps(x.rows, column_tiles, figures(context).multiprocessors, kTileWarps<Source>);
    const uint32_t row_tiles = x.rows == 0 ? 1 : ceil_div(x.rows, kWarpRows * warps);
    TileArgs<Source> tile{};
    tile.source = source_of(operands, args);
    tile.extent = {x.rows, x.cols, kUnbounded, column_tiles};
    tile.q = {args.q};
    tile.q_stride = args.out_cols();
    tile.transposed = {{args.q_t}, round_up(x.rows, kPadding)};
    tile.scale = scale;
    float* sums = args.dbias;
    if (kSums && row_tiles > 1) {
      const int64_t bytes = int64_t(row_tiles) * args.out_cols() * int64_t(sizeof(float));
      sums = static_cast<float*>(context.allocate(bytes, context.state));
    }
    tile.sums = {sums};
    const bool aligned = operands.aligned() && x.cols % 8 == 0;
    const auto kernel = aligned ? tiles_kernel<Source, Aligned, Fp8, kSums> : tiles_kernel<Source, Unaligned, Fp8, kSums>;
    launch(kernel, dim3(row_tiles * column_tiles), dim3(32 * warps), sizeof(TileSmem), stream_of(context), tile,
           again && fits_l2(context, args), finish);
    if (sums != args.dbias) add_sums(context, sums, row_tiles, args.out_cols(), args.dbias);
  }
};

}  // namespace transcast::cuda
