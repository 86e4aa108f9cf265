// The way of GEMM accumulators to the output, a row piece at a time.
#pragma once

#include <vector>

#include "cpu/gemm_scales.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace transcast::cpu {

constexpr int64_t kMaxTile = 512;  // columns of an output tile, and the longest piece that is finished at once

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

inline char* row_of(const void* data, DType dtype, int64_t stride, int64_t row, int64_t col) {
  return static_cast<char*>(const_cast<void*>(data)) + (row * stride + col) * int64_t(size_of(dtype));
}

class RowEpilogue {
 public:
  // Of a product that is in units of the codes, or of what their blocks' scales made of them.
  RowEpilogue(const GemmArgs& args, const Output& out) : args_(args), out_(out), k_(kernels()) {
    if (args.a_scale_inv.scaling == Scaling::tensor) {
      a_scale_inv_ = value_of(args.a_scale_inv, 0, 0);
      b_scale_inv_ = value_of(args.b_scale_inv, 0, 0);
    } else if (args.b_scale_inv.scaling == Scaling::row) {
      for (int64_t n = 0; n < args.b.rows; ++n) b_row_scale_inv_.push_back(value_of(args.b_scale_inv, n, 0));
    }
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
  void apply(float* acc, int64_t m, int64_t col, int64_t n) const {
    float buffer[kMaxTile];
    char* out = out_.q ? nullptr : row_of(out_.data, out_.dtype, out_.stride, m, col);
    const bool in_place = out && out_.dtype == DType::f32;  // FP32 rows are finished where they belong
    float* y = in_place ? reinterpret_cast<float*>(out) : acc;
    const float* added = nullptr;
    if (out_.accumulate) {
      added = in_place ? y : buffer;
      if (!in_place) k_.widen[int(out_.dtype)](out, n, buffer);
    }
    const bool by_row = args_.a_scale_inv.scaling == Scaling::row;
    k_.scale_and_bias({acc, y, n, by_row ? value_of(args_.a_scale_inv, m, 0) : a_scale_inv_, b_scale_inv_,
                       by_row ? b_row_scale_inv_.data() + col : nullptr, added,
                       bias_.empty() ? nullptr : bias_.data() + col});
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
    switch (args_.epilogue) {
      case Epilogue::none: return;
      case Epilogue::relu: return k_.relu(y, n);
      case Epilogue::gelu_tanh:
        if (args_.aux_out) {
          k_.narrow[int(args_.aux_dtype)](y, n, row_of(args_.aux_out, args_.aux_dtype, args_.aux_stride, m, col));
        }
        return k_.gelu_tanh(y, n);
      case Epilogue::dgelu:
        k_.widen[int(args_.aux_dtype)](row_of(args_.aux, args_.aux_dtype, args_.aux_stride, m, col), n, buffer);
        return k_.dgelu(y, buffer, n);
    }
  }

  const GemmArgs& args_;
  const Output& out_;
  const Kernels& k_;
  float a_scale_inv_ = 1.0f, b_scale_inv_ = 1.0f;
  std::vector<float> b_row_scale_inv_, bias_;
};

}  // namespace transcast::cpu
