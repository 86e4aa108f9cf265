// The cast pass, shared by the ops with a given scale and by current scaling: one read of x, q and its transpose
// written, column sums and amax on the way.
#pragma once

#include <memory>

#include "cpu/amax.h"

namespace transcast::cpu {

constexpr int64_t kTileRows = 64;   // one cache line of a transposed row
constexpr int64_t kTileCols = 256;  // long enough runs of each row, and the tile is 16 KiB
// Column sums are made per strip of this many rows, then added in order: the same result for any number of threads,
// and an error that grows with the strips' count and length, not with their product.
constexpr int64_t kStripRows = 1024;

inline uint32_t cast_flat(const Context& context, const CastArgs& args, float scale) {
  const Matrix x = flattened(args.x);
  const auto kernel = kernels().encode[int(x.dtype)][int(args.format)];
  AtomicMax best;
  for_each_block(context, x.rows, x.cols, [&](int64_t row, int64_t col, int64_t n) {
    best.update(kernel(element(x, row, col), 0, 1, n, scale, args.q + row * x.cols + col, 0));
  });
  return best.get();
}

// A tile is encoded into a buffer in L1 and leaves it twice, as rows and as columns.
inline uint32_t cast_tile(const CastArgs& args, int64_t row, int64_t col, float scale, bool stream, uint8_t* tile) {
  const Kernels& k = kernels();
  const int64_t rows = std::min(kTileRows, args.x.rows - row), cols = std::min(kTileCols, args.x.cols - col);
  const uint32_t amax = k.encode[int(args.x.dtype)][int(args.format)](
      element(args.x, row, col), args.x.stride, rows, cols, scale, tile, kTileCols);
  uint8_t* q = args.q + row * args.x.cols + col;
  if (stream) {
    k.stream_copy(tile, kTileCols, rows, cols, q, args.x.cols);
  } else {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * kTileCols, cols, q + r * args.x.cols);
  }
  if (args.q_t) {
    const int64_t padded = round_up(rows, kPadding), q_t_stride = round_up(args.x.rows, kPadding);
    std::fill(tile + rows * kTileCols, tile + padded * kTileCols, uint8_t(0));
    k.transpose(tile, kTileCols, padded, cols, args.q_t + col * q_t_stride + row, q_t_stride, stream);
  }
  return amax;
}

inline uint32_t cast_tiled(const Context& context, const CastArgs& args, float scale) {
  const Matrix& x = args.x;
  const int64_t strips = (x.rows + kStripRows - 1) / kStripRows, stripes = (x.cols + kTileCols - 1) / kTileCols;
  const bool stream = x.rows * x.cols > kStreamBytes;
  std::unique_ptr<float[]> sums;
  if (args.dbias) sums.reset(new float[strips * x.cols]());
  AtomicMax best;
  parallel_for(context, strips * stripes, std::min(x.rows, kStripRows) * kTileCols, [&](int64_t begin, int64_t end) {
    alignas(64) uint8_t tile[kTileRows * kTileCols] = {};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % strips * kStripRows, last = std::min(first + kStripRows, x.rows);
      const int64_t col = i / strips * kTileCols;
      for (int64_t row = first; row < last; row += kTileRows) {
        best.update(cast_tile(args, row, col, scale, stream, tile));
        if (args.dbias) {
          kernels().add_rows[int(x.dtype)](element(x, row, col), x.stride, std::min(kTileRows, last - row),
                                           std::min(kTileCols, x.cols - col),
                                           sums.get() + i % strips * x.cols + col);
        }
      }
    }
  });
  if (args.dbias) {
    IeeeMode guard;
    std::fill(args.dbias, args.dbias + x.cols, 0.0f);
    for (int64_t s = 0; s < strips; ++s) {
      for (int64_t c = 0; c < x.cols; ++c) args.dbias[c] += sums[s * x.cols + c];
    }
  }
  return best.get();
}

// Returns the amax bits of x.
inline uint32_t cast_pass(const Context& context, const CastArgs& args, float scale) {
  return args.q_t || args.dbias ? cast_tiled(context, args, scale) : cast_flat(context, args, scale);
}

}  // namespace transcast::cpu
