// FP8 GEMM on the CPU: both operands are decoded blockwise into panels for torch's BLAS (FP32, or BF16 where the
// machine multiplies that); the output tile is finished (scales, bias, activation, rounding) while it is in the cache.
// Scales of blocks multiply the decoded codes, all others the output. A few rows of `a` take a direct matrix-vector
// path instead, which reads each FP8 weight once. Neither operand is ever decoded whole.
#include "backend.h"

#include "cpu/epilogue.h"
#include "cpu/workspace.h"

namespace transcast {
namespace cpu {
namespace {

constexpr int64_t kMinTile = 128;            // output tile: kMaxTile at most, 1 MiB of accumulators
constexpr int64_t kTileDepth = 2048;         // operand panels: up to 4 MiB each
constexpr int64_t kTilesPerThread = 2;       // tiles shrink until there are so many
constexpr int64_t kProductsPerElement = 64;  // so many multiply-adds take as long as casting one element
constexpr int64_t kVectorRows = 4;           // up to so many rows: matrix-vector path
constexpr int64_t kVectorCols = 64;          // its unit of work

// y[n] = codes[row, col..], times their blocks' scales if there are any
void decode_row(const Codes& codes, const InverseScales& scales, int64_t row, int64_t col, int64_t n, float* y) {
  const uint8_t* q = codes.data + row * codes.stride + col;
  const auto decode = kernels().decode[int(codes.format)];
  if (!is_blockwise(scales.scaling)) return decode(q, n, 1.0f, y, false);
  const int64_t width = columns_per_scale(scales.scaling);
  for (int64_t i = 0; i < n;) {
    const int64_t piece = std::min(n - i, width - (col + i) % width);
    decode(q + i, piece, block_scale(scales, row, col + i), y + i, false);
    i += piece;
  }
}
void decode_row(const Codes& codes, const InverseScales&, int64_t row, int64_t col, int64_t n, uint16_t* y) {
  kernels().decode_bf16[int(codes.format)](codes.data + row * codes.stride + col, n, y);
}

// panel[rows, cols] (row-major, gapless) = codes[row.., col..] as FP32 or BF16
template <class T>
void decode_panel(const Codes& codes, const InverseScales& scales, int64_t row, int64_t col, int64_t rows, int64_t cols,
                  T* panel) {
  for (int64_t r = 0; r < rows; ++r) decode_row(codes, scales, row + r, col, cols, panel + r * cols);
}

void multiply_vectors(const Context& context, const GemmArgs& args, const RowEpilogue& epilogue) {
  const int64_t m = args.a.rows, n = args.b.rows, k = args.a.cols;
  const auto dot = kernels().dot[int(args.b.format)];
  Workspace workspace(Workspace::bytes<float>(m * k));
  float* x = workspace.take<float>(m * k);
  decode_panel(args.a, args.a_scale_inv, 0, 0, m, k, x);
  parallel_for(context, (n + kVectorCols - 1) / kVectorCols, kVectorCols * k, [&](int64_t begin, int64_t end) {
    float acc[kVectorRows][kVectorCols];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kVectorCols, cols = std::min(kVectorCols, n - first);
      for (int64_t c = 0; c < cols; c += 4) {
        const uint8_t* w = args.b.data + (first + c) * args.b.stride;
        for (int64_t i = 0; i < m; ++i) {
          dot(w, args.b.stride, int(std::min<int64_t>(4, cols - c)), x + i * k, k, acc[i] + c);
        }
      }
      for (int64_t i = 0; i < m; ++i) epilogue.apply(acc[i], i, first, cols);
    }
  });
}

int64_t tiles_of(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

// Each thread takes output tiles and does all of their work, so that threads meet once, at the end. BLAS stays on its
// thread when it is called from within a parallel region; with a single tile there is none, and BLAS may use them all.
template <class T, class Gemm>
void multiply_panels(const Context& context, const GemmArgs& args, const RowEpilogue& epilogue, Gemm gemm) {
  const int64_t m = args.a.rows, n = args.b.rows, k = args.a.cols;
  const int64_t enough = context.threads() > 1 ? kTilesPerThread * context.threads() : 1;
  int64_t tile = kMaxTile;
  while (tile > kMinTile && tiles_of(m, tile) * tiles_of(n, tile) < enough) tile /= 2;
  const int64_t tile_m = std::min(tile, m), tile_n = std::min(tile, n), depth = std::min(kTileDepth, k);
  const int64_t across = tiles_of(n, tile_n), tiles = tiles_of(m, tile_m) * across;
  const int64_t work = (tile_m + tile_n) * k + tile_m * tile_n * k / kProductsPerElement;
  parallel_for(context, tiles, work, [&](int64_t begin, int64_t end) {
    Workspace workspace(Workspace::bytes<T>(tile_m * depth) + Workspace::bytes<T>(tile_n * depth) +
                        Workspace::bytes<float>(tile_m * tile_n));
    T* a = workspace.take<T>(tile_m * depth);
    T* b = workspace.take<T>(tile_n * depth);
    float* c = workspace.take<float>(tile_m * tile_n);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / across * tile_m, rows = std::min(tile_m, m - i);
      const int64_t j = t % across * tile_n, cols = std::min(tile_n, n - j);
      const bool same_rows = t > begin && t % across > 0 && k <= depth;  // the panel of a is still there
      for (int64_t p = 0; p < k; p += depth) {
        const int64_t length = std::min(depth, k - p);
        if (!same_rows) decode_panel(args.a, args.a_scale_inv, i, p, rows, length, a);
        decode_panel(args.b, args.b_scale_inv, j, p, cols, length, b);
        gemm(rows, cols, length, a, length, b, length, p > 0, c, cols);
      }
      for (int64_t r = 0; r < rows; ++r) epilogue.apply(c + r * cols, i + r, j, cols);
    }
  });
}

// K = 0: the product is zero whatever the scales, and only bias, activation and accumulation remain.
void multiply_nothing(GemmArgs args, const Output& out) {
  constexpr float one = 1.0f;
  args.a_scale_inv = args.b_scale_inv = {&one, Scaling::tensor, 1, 1, 0, 0};
  const RowEpilogue epilogue(args, out);
  IeeeMode guard;
  float acc[kMaxTile];
  for (int64_t i = 0; i < args.a.rows; ++i) {
    for (int64_t j = 0; j < args.b.rows; j += kMaxTile) {
      const int64_t cols = std::min(kMaxTile, args.b.rows - j);
      std::fill(acc, acc + cols, 0.0f);
      epilogue.apply(acc, i, j, cols);
    }
  }
}

void multiply(const Context& context, const GemmArgs& args, const Output& out) {
  if (args.a.rows == 0 || args.b.rows == 0) return;
  if (args.a.cols == 0) return multiply_nothing(args, out);
  const RowEpilogue epilogue(args, out);
  const bool blockwise = is_blockwise(args.a_scale_inv.scaling);
  if (args.a.rows <= kVectorRows && !blockwise) return multiply_vectors(context, args, epilogue);
  if (context.bf16_gemm && kernels().bf16_arithmetic && !blockwise) {
    return multiply_panels<uint16_t>(context, args, epilogue, context.bf16_gemm);
  }
  multiply_panels<float>(context, args, epilogue, context.sgemm);
}

}  // namespace
}  // namespace cpu

void gemm(const Context& context, const GemmArgs& args, void* out, DType out_dtype, int64_t out_stride,
          bool accumulate) {
  cpu::multiply(context, args, {out, out_dtype, out_stride, accumulate, nullptr, Format::e4m3, 1.0f, nullptr});
}

void gemm_fp8(const Context& context, const GemmArgs& args, const float* out_scale, Format format, uint8_t* q,
              float* scale_inv, float* amax) {
  const float scale = *out_scale;
  cpu::AtomicMax best;
  cpu::multiply(context, args, {nullptr, DType::f32, args.b.rows, false, q, format, scale, &best});
  cpu::IeeeMode guard;
  *amax = canonical(float_of(best.get()));
  *scale_inv = scale_inv_of(scale, best.get());
}

}  // namespace transcast
