#include "ops/quantized.h"

namespace transcast::ops {
namespace {

void place(Matrix& matrix, const Tensor& tensor, Input& input) {
  const View& v = input.views.emplace_back(view(tensor));
  matrix.data = v.data;
  matrix.stride = v.stride;
}

void place_operands(Input& input) {
  CastArgs& args = input.args;
  place(args.x, input.x, input);
  if (input.up) {
    place(args.up, *input.up, input);
  } else if (args.act == Act::swiglu) {  // x holds [gate | up]: both have its stride
    args.up.stride = args.x.stride;
    if (args.x.data == nullptr) return;  // no elements
    args.up.data = static_cast<const char*>(args.x.data) + args.x.cols * int64_t(size_of(args.x.dtype));
  }
  if (input.g) place(args.g, *input.g, input);
}

Quantized allocate(Input& input, Format format) {
  place_operands(input);
  const Tensor& x = input.x;
  CastArgs& args = input.args;
  Quantized out{empty(x, input.sizes, code_of(format)), empty_scalar(x), {}, {}, {}, {}};
  args.format = format;
  args.q = data<uint8_t>(out.q);
  args.scale_inv = data<float>(out.scale_inv);
  if (input.wants.q_t) {
    out.q_t = empty(x, {args.out_cols(), round_up(args.x.rows, kPadding)}, code_of(format));
    args.q_t = data<uint8_t>(*out.q_t);
  }
  if (input.wants.dbias) {
    out.dbias = empty(x, {args.out_cols()}, code_of(DType::f32));
    args.dbias = data<float>(*out.dbias);
  }
  return out;
}

}  // namespace

Matrix checked_matrix(const char* op, const char* argument, const Tensor& tensor) {
  const DType dtype = high_precision(op, argument, dtype_of(tensor));
  check_aligned(op, argument, tensor);
  check_dims(op, argument, tensor);
  const auto sizes = tensor.sizes();
  Matrix matrix{nullptr, dtype, 1, sizes.size() == 0 ? 1 : sizes[sizes.size() - 1], 0};
  for (size_t d = 0; d + 1 < sizes.size(); ++d) matrix.rows *= sizes[d];
  return matrix;
}

Input input(const char* op, const Tensor& x, Wants wants, const char* argument) {
  check(!wants.q_t || x.dim() >= 1, op, argument, "must have at least one dimension to be transposed, got shape ()");
  Input result{op, wants, x, {}, sizes_of(x), {}, {}, {}};
  result.args.x = checked_matrix(op, argument, x);
  return result;
}

Quantized allocate_scaled(Input& input, Format format) {
  Quantized out = allocate(input, format);
  if (input.wants.q_t) {
    out.scale_inv_t = empty_scalar(input.x);
    input.args.scale_inv_t = data<float>(*out.scale_inv_t);
  }
  return out;
}

ScaleRule scale_rule(const char* op, bool pow2, int64_t margin) {
  check(-kMaxMargin <= margin && margin <= kMaxMargin, op, "margin", "must be between -", kMaxMargin, " and ",
        kMaxMargin, ", got ", margin);
  return {pow2, int(margin)};
}

Quantized cast_given(Input input, const Tensor& scale, int32_t dtype) {
  const Format format = format_of(input.op, "dtype", dtype);
  const float* given = scalar(input.op, "scale", scale, input.x);
  Quantized out = allocate(input, format);
  out.amax = empty_scalar(input.x);
  const Scope scope(input.x);
  transcast::cast(scope.context(), input.args, given, data<float>(*out.amax));
  return out;
}

Quantized cast_current(Input input, int32_t dtype, bool pow2, int64_t margin) {
  const Format format = format_of(input.op, "dtype", dtype);
  const ScaleRule rule = scale_rule(input.op, pow2, margin);
  Quantized out = allocate_scaled(input, format);
  const Scope scope(input.x);
  transcast::quantize(scope.context(), input.args, rule);
  return out;
}

}  // namespace transcast::ops
