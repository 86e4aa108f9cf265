// Outputs of the quantizing ops, shared by cast.cpp (scale given) and quantize.cpp (current scaling).
#pragma once

#include "ops/tensors.h"

namespace transcast::ops {

struct Wants {
  bool q_t, dbias;
};
constexpr Wants kRowsOnly{false, false}, kTransposed{true, false}, kWithDbias{true, true};

struct Quantized {
  Tensor q, scale_inv;
  std::optional<Tensor> q_t, dbias;
  CastArgs args;  // pointers into the tensors above
};

inline Matrix quantizable(const char* op, const Tensor& x, Wants wants, View& v) {
  check(!wants.q_t || x.dim() >= 1, op, "x", "must have at least one dimension to be transposed, got shape ()");
  return matrix(op, "x", x, v);
}

inline Quantized allocate(const Tensor& x, const Matrix& m, Format format, Wants wants) {
  Quantized out{empty(x, sizes_of(x), code_of(format)), empty_scalar(x), std::nullopt, std::nullopt, {}};
  if (wants.q_t) out.q_t = empty(x, {m.cols, round_up(m.rows, kPadding)}, code_of(format));
  if (wants.dbias) out.dbias = empty(x, {m.cols}, code_of(DType::f32));
  out.args = {m,
              format,
              data<uint8_t>(out.q),
              out.q_t ? data<uint8_t>(*out.q_t) : nullptr,
              out.dbias ? data<float>(*out.dbias) : nullptr,
              data<float>(out.scale_inv)};
  return out;
}

}  // namespace transcast::ops
