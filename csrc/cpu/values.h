// The FP32 values that an activation, or its gradient, makes of x: computed where they are needed, a piece of a row at
// a time, and never stored.
#pragma once

#include "cpu/amax.h"

namespace transcast::cpu {

class Values {
 public:
  static constexpr int64_t kPiece = 1024;  // with five buffers 20 KiB, within L1

  explicit Values(const CastArgs& args)
      : args_(args),
        widen_(kernels().widen[int(args.x.dtype)]),
        act_((args.gradient ? kernels().dact : kernels().act)[int(args.act)]) {}

  // The values for n <= kPiece elements of x from (row, col) on are then in part(0), and for the gradient of swiglu in
  // part(1) too.
  void compute(int64_t row, int64_t col, int64_t n) {
    act_({in(args_.x, row, col, n, x_), in(args_.up, row, col, n, up_), in(args_.g, row, col, n, g_), n,
          {y_[0], y_[1]}});
  }
  const float* part(int i) const { return y_[i]; }

 private:
  const float* in(const Matrix& m, int64_t row, int64_t col, int64_t n, float* buffer) const {
    if (m.data == nullptr) return nullptr;
    const void* data = element(m, row, col);
    if (m.dtype == DType::f32) return static_cast<const float*>(data);
    widen_(data, n, buffer);
    return buffer;
  }

  const CastArgs& args_;
  void (*const widen_)(const void*, int64_t, float*);
  void (*const act_)(const ActPiece&);
  alignas(64) float x_[kPiece], up_[kPiece], g_[kPiece], y_[2][kPiece];
};

// How many values there are for one element of x: each is a block of x.cols columns of the output.
inline int parts(const CastArgs& args) { return args.out_cols() == args.x.cols ? 1 : 2; }

// body(y, n, offset) for pieces of all values, where offset is their place in a row-major [rows, out_cols()].
template <class Body>
void for_each_piece(const Context& context, const CastArgs& args, const Body& body) {
  for_each_block(context, args.x.rows, args.x.cols, [&](int64_t row, int64_t col, int64_t n) {
    Values values(args);
    for (int64_t i = 0; i < n; i += Values::kPiece) {
      const int64_t m = std::min(Values::kPiece, n - i);
      values.compute(row, col + i, m);
      for (int part = 0; part < parts(args); ++part) {
        body(values.part(part), m, row * args.out_cols() + part * args.x.cols + col + i);
      }
    }
  });
}

}  // namespace transcast::cpu
