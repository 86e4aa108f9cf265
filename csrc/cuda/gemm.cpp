// FP8 GEMM: cuBLASLt where it does the whole product, else an FP32 product and one kernel of ours behind it.
#include <stdexcept>

#include "cuda/error.h"
#include "cuda/gemm_kernels.h"
#include "cuda/gemm_plan.h"

namespace transcast {
namespace cuda {
namespace {

// Where a product goes. For FP8: out_scale, scale_inv and amax, too.
struct Target {
  void* data;
  Output type;
  int64_t stride;
  bool accumulate;
  const float* out_scale;
  float *scale_inv, *amax;
};

bool is_multiple_of_16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// What cuBLASLt asks of an FP8 operand: 16-byte aligned rows, a multiple of 16 columns; `rows` too, for the one that makes
// the output's columns.
bool usable(const Codes& q, bool rows) {
  return is_multiple_of_16(q.data) && q.cols % kPadding == 0 && (q.rows <= 1 || q.stride % kPadding == 0) &&
         (!rows || q.rows % kPadding == 0);
}

bool usable(const void* data, int64_t stride, int64_t element_bytes) {
  return is_multiple_of_16(data) && stride * element_bytes % 16 == 0;
}

int64_t element_bytes(Output type) { return type == Output::f32 ? 4 : is_fp8(type) ? 1 : 2; }

// Blocks of a product read the scales when others have written their part of the output.
bool lies_in(const float* scale, const Target& target, const GemmArgs& args) {
  const auto begin = reinterpret_cast<uintptr_t>(target.data), at = reinterpret_cast<uintptr_t>(scale);
  const int64_t elements = (args.a.rows - 1) * target.stride + args.b.rows;
  return at >= begin && at < begin + uintptr_t(elements * element_bytes(target.type));
}

Request request_of(const CudaContext& context, const GemmArgs& args, Output out) {
  Request r{};
  r.a = args.a.format;
  r.b = args.b.format;
  r.a_scaling = r.b_scaling = Scaling::tensor;
  r.epilogue = args.epilogue;
  r.bias = args.bias != nullptr;
  r.aux = args.aux != nullptr || args.aux_out != nullptr;
  r.aux_dtype = args.aux_dtype;
  r.out = out;
  r.arch = figures(context).arch;
  r.library = library_version();
  return r;
}

Product product_of(const Request& request, const Codes& a, const Codes& b, const GemmArgs& args) {
  Product p{};
  p.request = request;
  p.m = args.a.rows;  // not the rows that pad a
  p.n = b.rows;
  p.k = a.cols;
  p.a = a.data;
  p.b = b.data;
  p.a_stride = p.m <= 1 ? a.cols : a.stride;
  p.b_stride = b.rows <= 1 ? b.cols : b.stride;
  p.a_scale_inv = args.a_scale_inv;
  p.b_scale_inv = args.b_scale_inv;
  p.fast_accum = args.fast_accum;
  return p;
}

// The whole product in one cublasLtMatmul, if operands and output lie as it needs them and it has an algorithm.
bool run_native(const CudaContext& context, const Request& request, const Codes& a, const Codes& b, const GemmArgs& args,
                const Target& target) {
  if (b.rows != args.b.rows || !usable(target.data, target.stride, element_bytes(target.type))) return false;
  if (lies_in(args.a_scale_inv, target, args) || lies_in(args.b_scale_inv, target, args)) return false;
  const void* aux = args.aux ? args.aux : args.aux_out;
  if (aux && !usable(aux, args.aux_stride, int64_t(size_of(args.aux_dtype)))) return false;
  Product p = product_of(request, a, b, args);
  p.d = target.data;
  p.d_stride = target.stride;
  p.accumulate = target.accumulate;
  p.bias = rounded_bias(context, args);
  p.bias_dtype = args.bias_rounding;
  if (p.bias && !is_multiple_of_16(p.bias)) return false;
  p.aux = const_cast<void*>(aux);
  p.aux_stride = args.aux_stride;
  if (is_fp8(target.type)) {
    p.d_scale = target.out_scale;
    p.d_amax = target.amax;
    check(cudaMemsetAsync(target.amax, 0, sizeof(float), stream_of(context)), "cudaMemsetAsync");
  }
  if (!run(context, p)) return false;
  if (is_fp8(target.type)) finish_fp8(context, target.out_scale, target.amax, target.scale_inv);
  return true;
}

// An FP32 product without epilogue in workspace memory, which every supported library and arch has.
const float* run_plain(const CudaContext& context, Request request, const Codes& a, const Codes& b, const GemmArgs& args) {
  request.epilogue = Epilogue::none;
  request.bias = request.aux = false;
  request.out = Output::f32;
  Product p = product_of(request, a, b, args);
  p.d = context.allocate(p.m * p.n * int64_t(sizeof(float)), context.state);
  p.d_stride = p.n;
  if (!run(context, p)) throw std::runtime_error("transcast: cuBLASLt has no algorithm for " + describe(p));
  return static_cast<const float*>(p.d);
}

void finish(const CudaContext& context, const GemmArgs& args, const float* acc, int64_t acc_stride, const Target& target) {
  EpilogueArgs e{};
  e.acc = acc;
  e.acc_stride = acc_stride;
  e.gemm = &args;
  e.out = target.data;
  e.out_stride = target.stride;
  e.accumulate = target.accumulate;
  if (is_fp8(target.type)) {
    const Format format = target.type == Output::e4m3 ? Format::e4m3 : Format::e5m2;
    epilogue_fp8(context, e, target.out_scale, format, static_cast<uint8_t*>(target.data), target.scale_inv, target.amax);
  } else {
    e.out_dtype = DType(int(target.type));
    epilogue(context, e);
  }
}

void multiply(const CudaContext& context, const GemmArgs& args, const Target& target) {
  const Request request = request_of(context, args, target.type);
  const Support verdict = support(request);
  if (verdict.way == Way::refused) throw std::invalid_argument("transcast: gemm: " + std::string(verdict.why));
  if (args.a.rows == 0 || args.b.rows == 0 || args.a.cols == 0) return finish(context, args, nullptr, 0, target);
  const Codes a = usable(args.a, false) ? args.a : padded(context, args.a);
  const Codes b = usable(args.b, true) ? args.b : padded(context, args.b);
  if (verdict.way == Way::native && run_native(context, request, a, b, args, target)) return;
  finish(context, args, run_plain(context, request, a, b, args), b.rows, target);
}

}  // namespace
}  // namespace cuda

void gemm(const Context& context, const GemmArgs& args, void* out, DType out_dtype, int64_t out_stride, bool accumulate) {
  if (args.a.rows == 0 || args.b.rows == 0) return;
  cuda::multiply(context, args, {out, cuda::output_of(out_dtype), out_stride, accumulate, nullptr, nullptr, nullptr});
}

void gemm_fp8(const Context& context, const GemmArgs& args, const float* out_scale, Format format, uint8_t* q,
              float* scale_inv, float* amax) {
  cuda::multiply(context, args, {q, cuda::output_of(format), args.b.rows, false, out_scale, scale_inv, amax});
}

}  // namespace transcast
