// From CastArgs to launches, for one source template. Which kernels exist is decided here and nowhere else.
#pragma once

#include "cuda/cast.cuh"
#include "cuda/grid.h"
#include "cuda/passes.h"

namespace transcast::cuda {

// An empty matrix has no address: nothing of it is loaded.
inline Input input(const Matrix& m) {
  if (m.rows == 0 || m.cols == 0) return {{nullptr}, {nullptr}, m.stride};
  const auto* data = static_cast<const uint8_t*>(m.data);
  return {{data}, {data + ((m.rows - 1) * m.stride + m.cols) * int64_t(size_of(m.dtype))}, m.stride};
}

template <class T>
inline bool is_aligned(const Matrix& m) {
  return in_whole_chunks(m.data, m.rows, m.stride * kElementBytes<T>);
}

inline bool is_contiguous(const Matrix& m) { return m.rows <= 1 || m.stride == m.cols; }

// A source's operands as matrices, in its order.
template <class Source>
struct Operands {
  const Matrix* matrix[Source::kOperands];

  template <class Property>
  bool all(Property property) const {
    bool each = true;
    for (const Matrix* m : matrix) each = each && property(*m);
    return each;
  }
  bool contiguous() const { return all(is_contiguous); }
  bool at_whole_chunks() const {
    return all([](const Matrix& m) { return at_whole_chunk(m.data); });
  }
  bool aligned() const { return all(is_aligned<typename Source::Element>); }
};

template <class Source>
Source source_of(const Operands<Source>& operands, const CastArgs& args) {
  Source source;
  for (int i = 0; i < Source::kOperands; ++i) source.operand[i] = input(*operands.matrix[i]);
  if constexpr (std::is_same_v<Source, Activation<typename Source::Element>> ||
                std::is_same_v<Source, ActivationGradient<typename Source::Element>>) {
    source.act = args.act;
  }
  return source;
}

template <class Source>
struct RowsLaunch {
  RowsArgs<Source> args;
  bool aligned;
};

// Contiguous operands lose their shape, and ragged rows with it: only where they begin and end counts.
template <class Source>
RowsLaunch<Source> rows_launch(const CastArgs& args, const Operands<Source>& operands) {
  const Matrix& x = args.x;
  RowsArgs<Source> rows{};
  rows.source = source_of(operands, args);
  rows.q = {args.q};
  if (operands.contiguous()) {
    const int64_t elements = x.rows * x.cols;
    rows.extent = {ceil_div(elements, kSegment), kSegment, elements, 1};
    rows.q_stride = kSegment;
    for (Input& operand : rows.source.operand) operand.stride = kSegment;
    rows.tiles = block_count(ceil_div(rows.extent.rows, kRowTile));
    return {rows, operands.at_whole_chunks() && elements % 8 == 0};
  }
  const int64_t column_tiles = ceil_div(x.cols, kSegment);
  rows.tiles = block_count(ceil_div(x.rows, kRowTile) * column_tiles);
  rows.extent = {x.rows, x.cols, kUnbounded, uint32_t(column_tiles)};
  rows.q_stride = x.cols;
  return {rows, operands.aligned() && x.cols % 8 == 0};
}

template <class Fp8, class Source>
void launch_rows(const CudaContext& context, const RowsLaunch<Source>& rows) {
  const dim3 grid(blocks_in_turns(context, rows.args.tiles));
  const auto kernel = rows.aligned ? rows_kernel<Source, Aligned, Fp8> : rows_kernel<Source, Unaligned, Fp8>;
  launch(kernel, grid, dim3(32 * kRowWarps), sizeof(Maxima), stream_of(context), rows.args);
}

template <class Source>
void amax_rows(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
               const Finish& finish) {
  RowsLaunch<Source> rows = rows_launch(args, operands);
  rows.args.finish = finish;
  launch_rows<NoCodes>(context, rows);
}

template <class Source>
bool fits_l2(const CudaContext& context, const CastArgs& args) {
  return args.x.rows * args.x.cols * kElementBytes<typename Source::Element> * Source::kOperands <=
         figures(context).l2_bytes;
}

template <class Fp8, class Source>
void cast_rows(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
               Global<const float> scale, bool again, const Finish& finish) {
  RowsLaunch<Source> rows = rows_launch(args, operands);
  rows.args.format = args.format;
  rows.args.scale = scale;
  rows.args.finish = finish;
  rows.args.reverse = again && fits_l2<Source>(context, args);
  launch_rows<Fp8>(context, rows);
}

template <class Fp8, bool kSums, class Source>
void cast_tiles(const CudaContext& context, const CastArgs& args, const Operands<Source>& operands,
                Global<const float> scale, bool again, const Finish& finish) {
  const Matrix& x = args.x;
  const int64_t column_tiles = x.cols == 0 ? 1 : ceil_div(x.cols, kSegment);
  const int warps = tile_warps(x.rows, column_tiles, figures(context).multiprocessors, kTileWarps<Source>);
  const int64_t row_tiles = x.rows == 0 ? 1 : ceil_div(x.rows, kWarpRows * warps);
  const uint32_t blocks = block_count(row_tiles * column_tiles);
  TileArgs<Source> tile{};
  tile.source = source_of(operands, args);
  tile.extent = {x.rows, x.cols, kUnbounded, uint32_t(column_tiles)};
  tile.q = {args.q};
  tile.q_stride = args.out_cols();
  tile.format = args.format;
  tile.transposed = {{args.q_t}, round_up(x.rows, kPadding)};
  tile.scale = scale;
  float* sums = args.dbias;
  if (kSums && row_tiles > 1) {
    const int64_t bytes = row_tiles * args.out_cols() * int64_t(sizeof(float));
    sums = static_cast<float*>(context.allocate(bytes, context.state));
  }
  tile.sums = {sums};
  const bool aligned = operands.aligned() && x.cols % 8 == 0;
  const auto kernel =
      aligned ? tiles_kernel<Source, Aligned, Fp8, kSums> : tiles_kernel<Source, Unaligned, Fp8, kSums>;
  launch(kernel, dim3(blocks), dim3(32 * warps), sizeof(TileSmem), stream_of(context), tile,
         again && fits_l2<Source>(context, args), finish);
  if (sums != args.dbias) add_sums(context, sums, row_tiles, warps, args.out_cols(), args.dbias);
}

}  // namespace transcast::cuda
