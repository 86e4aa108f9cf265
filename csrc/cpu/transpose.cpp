#include "backend.h"
#include "cpu/cast.h"

namespace transcast {

void transpose(const Context& context, const TransposeArgs& args) {
  using cpu::kTileCols;
  using cpu::kTileRows;
  const Codes& q = args.q;
  const int64_t strips = (q.rows + kTileRows - 1) / kTileRows, stripes = (q.cols + kTileCols - 1) / kTileCols;
  const int64_t q_t_stride = round_up(q.rows, kPadding);
  const bool stream = q.rows * q.cols > cpu::kStreamBytes;
  cpu::parallel_for(context, strips * stripes, kTileRows * kTileCols, [&](int64_t begin, int64_t end) {
    alignas(64) uint8_t tile[kTileRows * kTileCols];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % strips * kTileRows, col = i / strips * kTileCols;
      const int64_t rows = std::min(kTileRows, q.rows - row), cols = std::min(kTileCols, q.cols - col);
      const uint8_t* in = q.data + row * q.stride + col;
      uint8_t* out = args.q_t + col * q_t_stride + row;
      if (rows % kPadding == 0 && cols % 16 == 0) {
        cpu::kernels().transpose(in, q.stride, rows, cols, out, q_t_stride, stream);
        continue;
      }
      std::fill(tile, tile + sizeof tile, uint8_t(0));
      for (int64_t r = 0; r < rows; ++r) std::copy_n(in + r * q.stride, cols, tile + r * kTileCols);
      cpu::kernels().transpose(tile, kTileCols, round_up(rows, kPadding), cols, out, q_t_stride, stream);
    }
  });
}

}  // namespace transcast
