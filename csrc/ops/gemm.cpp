// FP8 GEMM: gemm, gemm_out (out given, accumulation, saved pre-activation) and gemm_fp8 (FP8 output).
#include "ops/gemm_scales.h"

namespace transcast::ops {
namespace {

using Maybe = std::optional<Tensor>;

Epilogue epilogue_of(const char* op, const std::string& name) {
  if (name == "none") return Epilogue::none;
  if (name == "relu") return Epilogue::relu;
  if (name == "gelu_tanh") return Epilogue::gelu_tanh;
  if (name == "dgelu") return Epilogue::dgelu;
  refuse(op, "epilogue", "must be none, relu, gelu_tanh or dgelu, got ", name);
}

// Operands share K, or one of them is a transposed output whose K was padded: then the shorter one counts.
int64_t common_k(const char* op, int64_t a, int64_t b) {
  const int64_t k = std::min(a, b);
  check(a == b || std::max(a, b) == round_up(k, kPadding), op, "b",
        "must have as many columns as a (or one of them that number rounded up to a multiple of 16, as transposed "
        "outputs have), got a with ",
        a, " and b with ", b);
  return k;
}

// A matrix that the op writes or reads in place: [.., N] like the output, its last dim gapless.
struct InPlace {
  void* data;
  DType dtype;
  int64_t rows, cols, stride;
};

// A matrix in bytes: a kernel may not write what it still has to read.
struct Span {
  const char *begin, *end;
  int64_t width, stride;
};

Span span(const void* data, int64_t rows, int64_t cols, int64_t stride, int64_t element_size) {
  const char* begin = static_cast<const char*>(data);
  const char* end = rows == 0 || cols == 0 ? begin : begin + ((rows - 1) * stride + cols) * element_size;
  return {begin, end, cols * element_size, stride * element_size};
}

Span span(const InPlace& m) { return span(m.data, m.rows, m.cols, m.stride, int64_t(size_of(m.dtype))); }
Span span(const Codes& m) { return span(m.data, m.rows, m.cols, m.stride, 1); }
Span span(const InverseScales& s) {
  const int64_t size = s.scaling == Scaling::mx_1x32 ? 1 : int64_t(sizeof(float));
  if (s.cols <= 1 || s.col_stride == 1) return span(s.data, s.rows, s.cols, s.row_stride, size);
  const int64_t elements = s.rows == 0 ? 0 : (s.rows - 1) * s.row_stride + (s.cols - 1) * s.col_stride + 1;
  return span(s.data, 1, elements, 0, size);  // as if it had no gaps
}

void check_apart(const char* op, const char* argument, const char* other, Span a, Span b) {
  bool apart = a.begin >= b.end || b.begin >= a.end;
  if (!apart && a.stride > 0) {  // between the rows of a there is room for columns of the same matrix, or for one piece
    const int64_t offset = ((b.begin - a.begin) % a.stride + a.stride) % a.stride;
    const int64_t width = a.stride == b.stride ? b.width : b.end - b.begin;
    apart = offset >= a.width && offset + width <= a.stride;
  }
  check(apart, op, argument, "must not share memory with ", other);
}

struct Call {
  View a_view, b_view, aux_view;
  GemmArgs args{};
  std::vector<int64_t> out_sizes;
  Tensor bias;  // keeps a contiguous copy alive

  Call(const char* op, const Tensor& a, const Tensor& b, const Tensor& a_scale_inv, const Tensor& b_scale_inv,
       const Maybe& bias_in, const std::string& epilogue, int32_t out_dtype, bool fast_accum)
      : bias(a) {
    check(a.dim() >= 1, op, "a", "must have at least one dimension, got shape ()");
    check(b.dim() == 2, op, "b", "must be [N, K], got shape ", shape_name(b));
    check_same_device(op, "b", b, a);
    args.epilogue = epilogue_of(op, epilogue);
    args.a = codes(op, "a", a, a_view);
    args.b = codes(op, "b", b, b_view);
    check(args.a.format == Format::e4m3 || args.b.format == Format::e4m3, op, "b",
          "must be float8_e4m3fn when a is float8_e5m2: no FP8 hardware multiplies e5m2 by e5m2");
    args.a.cols = args.b.cols = common_k(op, args.a.cols, args.b.cols);
    set_scales(op, a_scale_inv, b_scale_inv, a, args);
    args.fast_accum = fast_accum;
    out_sizes = sizes_of(a);
    out_sizes.back() = args.b.rows;
    set_bias(op, bias_in, a, out_dtype);
  }

  InPlace in_place(const char* op, const char* argument, const Tensor& tensor, const Tensor& like) const {
    const DType dtype = high_precision(op, argument, dtype_of(tensor));
    check(sizes_of(tensor) == out_sizes, op, argument, "must have the output's shape, got ", shape_name(tensor),
          " for ", args.a.rows, " rows of ", args.b.rows);
    check_same_device(op, argument, tensor, like);
    check_aligned(op, argument, tensor);
    const View v = view(tensor);
    check(v.owner.get() == tensor.get(), op, argument, "must have a contiguous last dimension and one row stride");
    check(v.rows <= 1 || v.stride >= v.cols || v.cols == 0, op, argument, "must not overlap itself, got row stride ",
          v.stride, " for ", v.cols, " columns");
    return {v.data ? tensor.mutable_data_ptr() : nullptr, dtype, v.rows, v.cols, v.stride};
  }

  void read_aux(const char* op, const Maybe& aux, const Tensor& like) {
    check(aux || args.epilogue != Epilogue::dgelu, op, "aux", "is what epilogue dgelu reads, got None");
    if (!aux) return;
    check(args.epilogue == Epilogue::dgelu, op, "aux", "is for epilogues dgelu and gelu_tanh, and no other");
    high_precision(op, "aux", dtype_of(*aux));
    check(sizes_of(*aux) == out_sizes, op, "aux", "must have the output's shape, got ", shape_name(*aux), " for ",
          args.a.rows, " rows of ", args.b.rows);
    check_same_device(op, "aux", *aux, like);
    const Matrix m = matrix(op, "aux", *aux, aux_view);
    args.aux = m.data, args.aux_dtype = m.dtype, args.aux_stride = m.stride;
  }

  Span span_of_aux(const void* aux) const {
    return span(aux, args.a.rows, args.b.rows, args.aux_stride, int64_t(size_of(args.aux_dtype)));
  }

  // Kernels and BLAS may write a part of their output before they have read all of their inputs.
  void check_apart_from_inputs(const char* op, const char* argument, Span written) const {
    check_apart(op, argument, "a", written, span(args.a));
    check_apart(op, argument, "b", written, span(args.b));
    check_apart(op, argument, "a_scale_inv", written, span(args.a_scale_inv));
    check_apart(op, argument, "b_scale_inv", written, span(args.b_scale_inv));
    if (args.bias) {
      check_apart(op, argument, "bias", written, span(args.bias, 1, args.b.rows, 0, int64_t(size_of(args.bias_dtype))));
    }
  }

  void write_aux(const char* op, const Maybe& aux_out, const Tensor& like) {
    if (!aux_out) return;
    check(args.epilogue == Epilogue::gelu_tanh, op, "aux_out", "is written by epilogue gelu_tanh, and by no other");
    const InPlace m = in_place(op, "aux_out", *aux_out, like);
    check_apart_from_inputs(op, "aux_out", span(m));
    args.aux_out = m.data, args.aux_dtype = m.dtype, args.aux_stride = m.stride;
  }

 private:
  void set_bias(const char* op, const Maybe& bias_in, const Tensor& a, int32_t out_dtype) {
    if (!bias_in) return;
    args.bias_dtype = high_precision(op, "bias", dtype_of(*bias_in));
    check(bias_in->dim() == 1 && bias_in->size(0) == args.b.rows, op, "bias", "must have shape (", args.b.rows,
          ",), got ", shape_name(*bias_in));
    check_same_device(op, "bias", *bias_in, a);
    // Tensor cores add a bias of 16 bits: FP16 beside FP16 outputs, BF16 otherwise; FP8 outputs take either.
    const bool fp8_out = out_dtype == code_of(Format::e4m3) || out_dtype == code_of(Format::e5m2);
    const bool half = out_dtype == code_of(DType::f16) || (fp8_out && args.bias_dtype == DType::f16);
    args.bias_rounding = half ? DType::f16 : DType::bf16;
    check_aligned(op, "bias", *bias_in);
    bias = args.b.rows > 1 && bias_in->stride(0) != 1 ? torch::stable::contiguous(*bias_in) : *bias_in;
    args.bias = bias.const_data_ptr();
  }
};

Tensor gemm(const Tensor& a, const Tensor& b, const Tensor& a_scale_inv, const Tensor& b_scale_inv, const Maybe& bias,
            const std::string& epilogue, const Maybe& aux, int32_t out_dtype, bool fast_accum) {
  const DType dtype = high_precision("gemm", "out_dtype", out_dtype);
  Call call("gemm", a, b, a_scale_inv, b_scale_inv, bias, epilogue, out_dtype, fast_accum);
  call.read_aux("gemm", aux, a);
  Tensor out = empty(a, call.out_sizes, out_dtype);
  const Scope scope(a);
  transcast::gemm(scope.context(), call.args, out.mutable_data_ptr(), dtype, call.args.b.rows, false);
  return out;
}

void gemm_out(const Tensor& a, const Tensor& b, const Tensor& a_scale_inv, const Tensor& b_scale_inv, const Maybe& bias,
              const std::string& epilogue, const Maybe& aux, bool fast_accum, bool accumulate, Tensor out,
              const Maybe& aux_out) {
  Call call("gemm_out", a, b, a_scale_inv, b_scale_inv, bias, epilogue, dtype_of(out), fast_accum);
  const InPlace target = call.in_place("gemm_out", "out", out, a);
  check(!accumulate || target.dtype != DType::f16, "gemm_out", "out",
        "must be float32 or bfloat16 to accumulate into, got float16");
  check(!accumulate || call.args.epilogue == Epilogue::none, "gemm_out", "epilogue",
        "must be none when accumulating, got ", epilogue);
  call.read_aux("gemm_out", aux, a);
  call.write_aux("gemm_out", aux_out, a);
  call.check_apart_from_inputs("gemm_out", "out", span(target));
  const GemmArgs& args = call.args;
  for (const void* matrix : {args.aux, static_cast<const void*>(args.aux_out)}) {
    if (!matrix) continue;
    check_apart("gemm_out", "out", "aux", span(target), call.span_of_aux(matrix));
  }
  const Scope scope(a);
  transcast::gemm(scope.context(), args, target.data, target.dtype, target.stride, accumulate);
}

std::tuple<Tensor, Tensor, Tensor> gemm_fp8(const Tensor& a, const Tensor& b, const Tensor& a_scale_inv,
                                            const Tensor& b_scale_inv, const Tensor& out_scale, const Maybe& bias,
                                            const std::string& epilogue, int32_t dtype, bool fast_accum,
                                            const Maybe& aux_out) {
  const Format format = format_of("gemm_fp8", "dtype", dtype);
  Call call("gemm_fp8", a, b, a_scale_inv, b_scale_inv, bias, epilogue, dtype, fast_accum);
  check(call.args.epilogue != Epilogue::dgelu, "gemm_fp8", "epilogue",
        "must be none, relu or gelu_tanh, got dgelu: its output is a gradient, for gemm");
  const float* scale = scalar("gemm_fp8", "out_scale", out_scale, a);
  call.write_aux("gemm_fp8", aux_out, a);
  if (aux_out) {
    check_apart("gemm_fp8", "aux_out", "out_scale", call.span_of_aux(call.args.aux_out),
                span(scale, 1, 1, 0, int64_t(sizeof(float))));
  }
  Tensor q = empty(a, call.out_sizes, dtype), scale_inv = empty_scalar(a), amax = empty_scalar(a);
  const Scope scope(a);
  transcast::gemm_fp8(scope.context(), call.args, scale, format, data<uint8_t>(q), data<float>(scale_inv),
                      data<float>(amax));
  return {q, scale_inv, amax};
}

TRANSCAST_SCHEMAS(m) {
  m.def(
      "gemm(Tensor a, Tensor b, Tensor a_scale_inv, Tensor b_scale_inv, Tensor? bias, str epilogue, Tensor? aux, "
      "ScalarType out_dtype, bool fast_accum) -> Tensor");
  m.def(
      "gemm_out(Tensor a, Tensor b, Tensor a_scale_inv, Tensor b_scale_inv, Tensor? bias, str epilogue, "
      "Tensor? aux, bool fast_accum, bool accumulate, Tensor(a!) out, Tensor(b!)? aux_out) -> ()");
  m.def(
      "gemm_fp8(Tensor a, Tensor b, Tensor a_scale_inv, Tensor b_scale_inv, Tensor out_scale, Tensor? bias, "
      "str epilogue, ScalarType dtype, bool fast_accum, Tensor(a!)? aux_out) -> "
      "(Tensor q, Tensor scale_inv, Tensor amax)");
}

TRANSCAST_OPS(m) {
  m.impl("gemm", TORCH_BOX(&gemm));
  m.impl("gemm_out", TORCH_BOX(&gemm_out));
  m.impl("gemm_fp8", TORCH_BOX(&gemm_fp8));
}

}  // namespace
}  // namespace transcast::ops
