// The cast pass, shared by the ops with a given scale and by current scaling: one read of x, q and its transpose
// written, column sums and amax on the way. What is cast is x, or what an activation makes of it.
#pragma once

#include <memory>

#include "cpu/values.h"

namespace transcast::cpu {

constexpr int64_t kTileRows = 64;   // one cache line of a transposed row
constexpr int64_t kTileCols = 256;  // long enough runs of each row, and the tile is 16 KiB
// Column sums are made per strip of this many rows, then added in order: the same result for any number of threads,
// and an error that grows with the strips' count and length, not with their product.
constexpr int64_t kStripRows = 1024;

// Returns the amax bits of what is to be cast.
inline uint32_t amax_bits(const Context& context, const CastArgs& args) {
  if (args.act == Act::none) return amax_bits(context, args.x);
  const auto kernel = kernels().amax[int(DType::f32)];
  AtomicMax best;
  for_each_piece(context, args, [&](const float* y, int64_t n, int64_t) { best.update(kernel(y, n)); });
  return best.get();
}

inline uint32_t cast_flat(const Context& context, const CastArgs& args, float scale) {
  AtomicMax best;
  if (args.act != Act::none) {
    const auto kernel = kernels().encode[int(DType::f32)][int(args.format)];
    for_each_piece(context, args, [&](const float* y, int64_t n, int64_t offset) {
      best.update(kernel(y, 0, 1, n, scale, args.q + offset, 0));
    });
    return best.get();
  }
  const Matrix x = flattened(args.x);
  const auto kernel = kernels().encode[int(x.dtype)][int(args.format)];
  for_each_block(context, x.rows, x.cols, [&](int64_t row, int64_t col, int64_t n) {
    best.update(kernel(element(x, row, col), 0, 1, n, scale, args.q + row * x.cols + col, 0));
  });
  return best.get();
}

// A tile of x is encoded into a buffer in L1 and leaves it twice, as rows and as columns. The gradient of swiglu has
// two values for each element of x: as many tiles.
class TileCast {
 public:
  TileCast(const CastArgs& args, float scale) : args_(args), scale_(scale), values_(args) {
    // Transposes read whole blocks, but nothing uninitialized.
    std::fill_n(tile_[0], parts(args) * kTileRows * kTileCols, uint8_t(0));
  }

  // Adds the columns' sums to sums, if there are any, and returns the amax bits.
  uint32_t operator()(int64_t row, int64_t col, float* sums) {
    const int64_t rows = std::min(kTileRows, args_.x.rows - row), cols = std::min(kTileCols, args_.x.cols - col);
    const bool plain = args_.act == Act::none;
    const uint32_t amax = plain ? encode(row, col, rows, cols, sums) : encode_values(row, col, rows, cols, sums);
    for (int part = 0; part < parts(args_); ++part) store(tile_[part], row, part * args_.x.cols + col, rows, cols);
    return amax;
  }

 private:
  // Each fills the tile, or tiles.
  uint32_t encode(int64_t row, int64_t col, int64_t rows, int64_t cols, float* sums) {
    const Matrix& x = args_.x;
    const void* data = element(x, row, col);
    if (sums) k_.add_rows[int(x.dtype)](data, x.stride, rows, cols, sums + col);
    return k_.encode[int(x.dtype)][int(args_.format)](data, x.stride, rows, cols, scale_, tile_[0], kTileCols);
  }

  uint32_t encode_values(int64_t row, int64_t col, int64_t rows, int64_t cols, float* sums) {
    uint32_t amax = 0;
    for (int64_t r = 0; r < rows; ++r) {
      values_.compute(row + r, col, cols);
      for (int part = 0; part < parts(args_); ++part) {
        const float* y = values_.part(part);
        if (sums) k_.add_rows[int(DType::f32)](y, 0, 1, cols, sums + part * args_.x.cols + col);
        uint8_t* q = tile_[part] + r * kTileCols;
        amax = std::max(amax, k_.encode[int(DType::f32)][int(args_.format)](y, 0, 1, cols, scale_, q, 0));
      }
    }
    return amax;
  }

  void store(uint8_t* tile, int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    const int64_t stride = args_.out_cols();
    uint8_t* q = args_.q + row * stride + col;
    if (stream_) {
      k_.stream_copy(tile, kTileCols, rows, cols, q, stride);
    } else {
      for (int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * kTileCols, cols, q + r * stride);
    }
    if (!args_.q_t) return;
    const int64_t padded = round_up(rows, kPadding), q_t_stride = round_up(args_.x.rows, kPadding);
    std::fill(tile + rows * kTileCols, tile + padded * kTileCols, uint8_t(0));
    k_.transpose(tile, kTileCols, padded, cols, args_.q_t + col * q_t_stride + row, q_t_stride, stream_);
  }

  const CastArgs& args_;
  const Kernels& k_ = kernels();
  const float scale_;
  const bool stream_ = args_.x.rows * args_.out_cols() > kStreamBytes;
  Values values_;
  alignas(64) uint8_t tile_[2][kTileRows * kTileCols];
};

inline uint32_t cast_tiled(const Context& context, const CastArgs& args, float scale) {
  const int64_t rows = args.x.rows, cols = args.x.cols, out_cols = args.out_cols();
  const int64_t strips = (rows + kStripRows - 1) / kStripRows, stripes = (cols + kTileCols - 1) / kTileCols;
  std::unique_ptr<float[]> sums;
  if (args.dbias) sums.reset(new float[strips * out_cols]());
  AtomicMax best;
  parallel_for(context, strips * stripes, std::min(rows, kStripRows) * kTileCols, [&](int64_t begin, int64_t end) {
    TileCast cast(args, scale);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t strip = i % strips, first = strip * kStripRows, last = std::min(first + kStripRows, rows);
      float* strip_sums = args.dbias ? sums.get() + strip * out_cols : nullptr;
      for (int64_t row = first; row < last; row += kTileRows) {
        best.update(cast(row, i / strips * kTileCols, strip_sums));
      }
    }
  });
  if (args.dbias) {
    IeeeMode guard;
    std::fill(args.dbias, args.dbias + out_cols, 0.0f);
    for (int64_t s = 0; s < strips; ++s) {
      for (int64_t c = 0; c < out_cols; ++c) args.dbias[c] += sums[s * out_cols + c];
    }
  }
  return best.get();
}

// Returns the amax bits of what is cast.
inline uint32_t cast_pass(const Context& context, const CastArgs& args, float scale) {
  return args.q_t || args.dbias ? cast_tiled(context, args, scale) : cast_flat(context, args, scale);
}

}  // namespace transcast::cpu
