#include "ops/gemm_scales.h"

namespace transcast::ops {
namespace {

constexpr Scaling kScalings[] = {Scaling::tensor, Scaling::row, Scaling::block_1x128, Scaling::block_128x128,
                                 Scaling::mx_1x32};

struct Shape {
  int64_t rows, cols;
};

Shape shape_for(Scaling scaling, const Codes& operand) {
  switch (scaling) {
    case Scaling::row: return {operand.rows, 1};
    case Scaling::block_1x128: return {operand.rows, ceil_div(operand.cols, kBlock)};
    case Scaling::block_128x128: return {ceil_div(operand.rows, kBlock), ceil_div(operand.cols, kBlock)};
    case Scaling::mx_1x32: return {operand.rows, ceil_div(operand.cols, kMxBlock)};
    default: return {1, 1};
  }
}

bool fits(Scaling scaling, const Tensor& scale, const Codes& operand) {
  const int32_t dtype = scaling == Scaling::mx_1x32 ? aoti_torch_dtype_uint8() : code_of(DType::f32);
  if (dtype_of(scale) != dtype) return false;
  if (scaling == Scaling::tensor) return scale.numel() == 1;
  const Shape shape = shape_for(scaling, operand);
  return scale.dim() == 2 && scale.size(0) == shape.rows && scale.size(1) == shape.cols;
}

// What the scales may be, one bit each: small operands have shapes that several granularities share.
unsigned fitting(const char* op, const char* argument, const Tensor& scale, const Codes& operand) {
  unsigned found = 0;
  for (Scaling one : kScalings) found |= unsigned(fits(one, scale, operand)) << int(one);
  if (found != 0) return found;
  const auto shape = [&](Scaling scaling) {
    const Shape of = shape_for(scaling, operand);
    return shape_name({of.rows, of.cols});
  };
  refuse(op, argument, "must hold one float32 element, one for each row ", shape(Scaling::row), ", 1x128 block ",
         shape(Scaling::block_1x128), " or 128x128 block ", shape(Scaling::block_128x128),
         ", or one uint8 E8M0 scale for each 1x32 block ", shape(Scaling::mx_1x32), "; got ",
         dtype_name(dtype_of(scale)), " ", shape_name(scale));
}

InverseScales scales(const char* op, const char* argument, Scaling scaling, const Tensor& scale, const Codes& operand,
                     const Tensor& like) {
  check_same_device(op, argument, scale, like);
  check_aligned(op, argument, scale);
  const Shape shape = shape_for(scaling, operand);
  const bool one = scale.numel() == 1;  // it serves every row
  return {scale.const_data_ptr(), scaling, shape.rows, shape.cols, one ? 0 : scale.stride(0),
          one ? 0 : scale.stride(1)};
}

}  // namespace

void set_scales(const char* op, const Tensor& a_scale_inv, const Tensor& b_scale_inv, const Tensor& like,
                GemmArgs& args) {
  const unsigned a_fits = fitting(op, "a_scale_inv", a_scale_inv, args.a);
  const unsigned b_fits = fitting(op, "b_scale_inv", b_scale_inv, args.b);
  // The coarsest pair that says what the shapes say: a scale per row and one for the whole tensor are both rows, and
  // where K has one block, so may be both of them beside blocks.
  constexpr Scaling pairs[][2] = {
      {Scaling::tensor, Scaling::tensor},
      {Scaling::row, Scaling::row},
      {Scaling::row, Scaling::tensor},
      {Scaling::tensor, Scaling::row},
      {Scaling::block_1x128, Scaling::block_1x128},
      {Scaling::block_1x128, Scaling::block_128x128},
      {Scaling::block_128x128, Scaling::block_1x128},
      {Scaling::mx_1x32, Scaling::mx_1x32},
  };
  for (const auto& [of_a, of_b] : pairs) {
    if (!(a_fits >> int(of_a) & 1) || !(b_fits >> int(of_b) & 1)) continue;
    const bool rows = of_a == Scaling::row || of_b == Scaling::row;
    args.a_scale_inv = scales(op, "a_scale_inv", rows ? Scaling::row : of_a, a_scale_inv, args.a, like);
    args.b_scale_inv = scales(op, "b_scale_inv", rows ? Scaling::row : of_b, b_scale_inv, args.b, like);
    return;
  }
  refuse(op, "b_scale_inv",
         "must go with a_scale_inv: both per tensor or row, both per 1x32 block, or both per block of 128 "
         "columns, one of them 1x128; got ",
         shape_name(b_scale_inv), " beside ", shape_name(a_scale_inv));
}

}  // namespace transcast::ops
