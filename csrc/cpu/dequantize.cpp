#include "backend.h"
#include "core/memory.h"
#include "cpu/amax.h"

namespace transcast {

void dequantize(const Context& context, const DequantizeArgs& args) {
  const cpu::Kernels& k = cpu::kernels();
  const auto decode = k.decode[int(args.q.format)];
  const auto narrow = k.narrow[int(args.dtype)];
  const bool gapless = args.q.stride == args.q.cols || args.q.rows <= 1;
  const int64_t rows = gapless ? 1 : args.q.rows, cols = gapless ? args.q.rows * args.q.cols : args.q.cols;
  // Around the caches, where the output does not fit; but a block from beyond malloc's reach is fresh pages, which the
  // kernel has just zeroed through the caches.
  const int64_t bytes = rows * cols * int64_t(size_of(args.dtype));
  const bool stream = bytes > cpu::kStreamBytes && bytes < kFreshBytes;
  const float scale_inv = *args.scale_inv;
  cpu::for_each_block(context, rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    const uint8_t* q = args.q.data + row * args.q.stride + col;
    char* y = static_cast<char*>(args.y) + (row * cols + col) * int64_t(size_of(args.dtype));
    if (args.dtype == DType::f32) return decode(q, n, scale_inv, reinterpret_cast<float*>(y), stream);
    constexpr int64_t piece = 1024;
    float wide[piece];
    for (int64_t i = 0; i < n; i += piece) {
      const int64_t m = std::min(piece, n - i);
      decode(q + i, m, scale_inv, wide, false);
      narrow(wide, m, y + 2 * i);
    }
  });
}

}  // namespace transcast
