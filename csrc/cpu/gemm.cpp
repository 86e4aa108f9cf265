// FP8 GEMM on the CPU: both operands are decoded blockwise into panels for torch's BLAS (FP32, or BF16 where the machine multiplies that); the output tile is
// finished (scales, bias, activation, rounding) while it is in the cache. A few rows of `a` take a direct
// matrix-vector path instead, which reads each FP8 weight once. Neither operand is ever decoded whole.
#include "backend.h"

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "cpu/amax.h"

namespace transcast {
namespace cpu {
namespace {

constexpr int64_t kMaxTile = 512, kMinTile = 128;  // output tile: up to 1 MiB of accumulators
constexpr int64_t kTileDepth = 2048;               // operand panels: up to 4 MiB each
constexpr int64_t kEnoughTiles = 8;                // tiles shrink until there are so many, to feed the threads
constexpr int64_t kVectorRows = 4;                 // up to so many rows: matrix-vector path
constexpr int64_t kVectorCols = 64;                // its unit of work

// Panels of one call, carved from memory that each calling thread keeps (at most 9 MiB, unless one operand has very
// long rows): fresh pages would cost more than decoding into them.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset(static_cast<char*>(std::aligned_alloc(64, round_up(bytes, 64))));
      capacity_ = memory_ ? bytes : 0;
      if (!memory_) throw std::bad_alloc();
    }
  }

  template <class T>
  T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(memory_.get() + used_);
    used_ += bytes<T>(count);
    return p;
  }

  template <class T>
  static int64_t bytes(int64_t count) {
    return round_up(count * int64_t(sizeof(T)), 64);
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<char, Free> memory_;
  static thread_local int64_t capacity_;
  int64_t used_ = 0;
};
thread_local std::unique_ptr<char, Scratch::Free> Scratch::memory_;
thread_local int64_t Scratch::capacity_ = 0;

// Where finished rows go: a 16- or 32-bit matrix, or FP8 with its amax.
struct Output {
  void* data;
  DType dtype;
  int64_t stride;
  bool accumulate;
  uint8_t* q;  // not null: FP8
  Format format;
  float scale;
  AtomicMax* amax;
};

char* row_of(const void* data, DType dtype, int64_t stride, int64_t row, int64_t col) {
  return static_cast<char*>(const_cast<void*>(data)) + (row * stride + col) * int64_t(size_of(dtype));
}

class Finisher {
 public:
  Finisher(const GemmArgs& args, const Output& out) : args_(args), out_(out), k_(kernels()) {
    if (!args.bias) return;
    bias_.resize(args.b.rows);
    k_.widen[int(args.bias_dtype)](args.bias, args.b.rows, bias_.data());
    if (args.bias_rounding != args.bias_dtype) {
      std::vector<uint16_t> rounded(args.b.rows);
      k_.narrow[int(args.bias_rounding)](bias_.data(), args.b.rows, rounded.data());
      k_.widen[int(args.bias_rounding)](rounded.data(), args.b.rows, bias_.data());
    }
  }

  // Turns n <= kMaxTile accumulators of row m, columns from col on, into output.
  void finish(float* acc, int64_t m, int64_t col, int64_t n) const {
    float buffer[kMaxTile];
    char* out = out_.q ? nullptr : row_of(out_.data, out_.dtype, out_.stride, m, col);
    const bool in_place = out && out_.dtype == DType::f32;  // FP32 rows are finished where they belong
    float* y = in_place ? reinterpret_cast<float*>(out) : acc;
    const float* added = nullptr;
    if (out_.accumulate) {
      added = in_place ? y : buffer;
      if (!in_place) k_.widen[int(out_.dtype)](out, n, buffer);
    }
    k_.scale_and_bias(
        {acc, y, n, *args_.a_scale_inv, *args_.b_scale_inv, added, bias_.empty() ? nullptr : bias_.data() + col});
    activate(y, m, col, n, buffer);
    if (out_.q) {
      uint8_t* q = out_.q + m * out_.stride + col;
      out_.amax->update(k_.encode[int(DType::f32)][int(out_.format)](y, 0, 1, n, out_.scale, q, 0));
    } else if (!in_place) {
      k_.narrow[int(out_.dtype)](y, n, out);
    }
  }

 private:
  void activate(float* y, int64_t m, int64_t col, int64_t n, float* buffer) const {
    const int aux_dtype = int(args_.aux_dtype);
    switch (args_.epilogue) {
      case Epilogue::none: return;
      case Epilogue::relu: return k_.relu(y, n);
      case Epilogue::gelu_tanh:
        if (args_.aux_out) {
          k_.narrow[aux_dtype](y, n, row_of(args_.aux_out, args_.aux_dtype, args_.aux_stride, m, col));
        }
        return k_.gelu_tanh(y, n);
      case Epilogue::dgelu:
        k_.widen[aux_dtype](row_of(args_.aux, args_.aux_dtype, args_.aux_stride, m, col), n, buffer);
        return k_.dgelu(y, buffer, n);
    }
  }

  const GemmArgs& args_;
  const Output& out_;
  const Kernels& k_;
  std::vector<float> bias_;
};

void decode_row(Format format, const uint8_t* q, int64_t n, float* y) {
  kernels().decode[int(format)](q, n, 1.0f, y, false);
}
void decode_row(Format format, const uint8_t* q, int64_t n, uint16_t* y) {
  kernels().decode_bf16[int(format)](q, n, y);
}

// panel[rows, cols] (row-major, gapless) = codes[row.., col..] as FP32 or BF16
template <class T>
void decode_panel(const Codes& codes, int64_t row, int64_t col, int64_t rows, int64_t cols, T* panel) {
  for (int64_t r = 0; r < rows; ++r) {
    decode_row(codes.format, codes.data + (row + r) * codes.stride + col, cols, panel + r * cols);
  }
}

void multiply_vectors(const Context& context, const GemmArgs& args, const Finisher& finisher) {
  const int64_t m = args.a.rows, n = args.b.rows, k = args.a.cols;
  const auto dot = kernels().dot[int(args.b.format)];
  Scratch scratch(Scratch::bytes<float>(m * k));
  float* x = scratch.take<float>(m * k);
  decode_panel(args.a, 0, 0, m, k, x);
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
      for (int64_t i = 0; i < m; ++i) finisher.finish(acc[i], i, first, cols);
    }
  });
}

int64_t tiles_of(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

// Each thread takes output tiles and does all of their work, so that threads meet once, at the end. BLAS called from
// within a parallel region stays on its thread.
template <class T, class Gemm>
void multiply_panels(const Context& context, const GemmArgs& args, const Finisher& finisher, Gemm gemm) {
  const int64_t m = args.a.rows, n = args.b.rows, k = args.a.cols;
  int64_t tile = kMaxTile;
  while (tile > kMinTile && tiles_of(m, tile) * tiles_of(n, tile) < kEnoughTiles) tile /= 2;
  const int64_t tile_m = std::min(tile, m), tile_n = std::min(tile, n), depth = std::min(kTileDepth, k);
  const int64_t across = tiles_of(n, tile_n);
  parallel_for(context, tiles_of(m, tile_m) * across, tile_m * tile_n, [&](int64_t begin, int64_t end) {
    Scratch scratch(Scratch::bytes<T>(tile_m * depth) + Scratch::bytes<T>(tile_n * depth) +
                    Scratch::bytes<float>(tile_m * tile_n));
    T* a = scratch.take<T>(tile_m * depth);
    T* b = scratch.take<T>(tile_n * depth);
    float* c = scratch.take<float>(tile_m * tile_n);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / across * tile_m, rows = std::min(tile_m, m - i);
      const int64_t j = t % across * tile_n, cols = std::min(tile_n, n - j);
      const bool same_rows = t > begin && t % across > 0 && k <= depth;  // the panel of a is still there
      for (int64_t p = 0; p < k; p += depth) {
        const int64_t length = std::min(depth, k - p);
        if (!same_rows) decode_panel(args.a, i, p, rows, length, a);
        decode_panel(args.b, j, p, cols, length, b);
        gemm(rows, cols, length, a, length, b, length, p > 0, c, cols);
      }
      for (int64_t r = 0; r < rows; ++r) finisher.finish(c + r * cols, i + r, j, cols);
    }
  });
}

// K = 0: the product is zero, and only bias, activation and accumulation remain.
void multiply_nothing(const GemmArgs& args, const Finisher& finisher) {
  IeeeMode guard;
  float acc[kMaxTile];
  for (int64_t i = 0; i < args.a.rows; ++i) {
    for (int64_t j = 0; j < args.b.rows; j += kMaxTile) {
      const int64_t cols = std::min(kMaxTile, args.b.rows - j);
      std::fill(acc, acc + cols, 0.0f);
      finisher.finish(acc, i, j, cols);
    }
  }
}

void multiply(const Context& context, const GemmArgs& args, const Output& out) {
  if (args.a.rows == 0 || args.b.rows == 0) return;
  const Finisher finisher(args, out);
  if (args.a.cols == 0) return multiply_nothing(args, finisher);
  if (args.a.rows <= kVectorRows) return multiply_vectors(context, args, finisher);
  if (context.bf16_gemm && kernels().bf16_arithmetic) {
    return multiply_panels<uint16_t>(context, args, finisher, context.bf16_gemm);
  }
  multiply_panels<float>(context, args, finisher, context.sgemm);
}

}  // namespace
}  // namespace cpu

void gemm(const Context& context, const GemmArgs& args, void* out, DType out_dtype, int64_t out_stride,
          bool accumulate) {
  cpu::multiply(context, args, {out, out_dtype, out_stride, accumulate, nullptr, Format::e4m3, 1.0f, nullptr});
}

void gemm_fp8(const Context& context, const GemmArgs& args, const float* out_scale, Format format, uint8_t* q,
              float* scale_inv, float* amax) {
  cpu::AtomicMax best;
  cpu::multiply(context, args,
                {nullptr, DType::f32, args.b.rows, false, q, format, *out_scale, &best});
  cpu::IeeeMode guard;
  *amax = canonical(float_of(best.get()));
  *scale_inv = scale_inv_of(*out_scale, best.get());
}

}  // namespace transcast
