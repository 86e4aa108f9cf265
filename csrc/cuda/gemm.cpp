// FP8 GEMM: cuBLASLt where it does the whole product, else an FP32 product and one kernel of ours behind it.
#include <stdexcept>

#include "cuda/error.h"
#include "cuda/gemm_epilogue.h"
#include "cuda/gemm_operands.h"
#include "cuda/gemm_plan.h"
#include "cuda/grid.h"

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

bool is_block(Scaling scaling) { return scaling == Scaling::block_1x128 || scaling == Scaling::block_128x128; }

// What cuBLASLt asks of an FP8 operand: 16-byte aligned rows, and multiples of so many rows and columns.
struct Multiples {
  int64_t a_rows, b_rows, columns;
};

Multiples multiples_for(Scaling scaling) {
  return {is_block(scaling) ? 4 : 1, kPadding, scaling == Scaling::mx_1x32 ? kMxBlock : kPadding};
}

// Rows must not share memory: expanded ones, and windows.
bool usable(const Codes& q, int64_t rows, int64_t columns) {
  const bool apart = q.rows <= 1 || q.stride >= q.cols;
  return in_whole_chunks(q.data, q.rows, q.stride) && apart && q.cols % columns == 0 && q.rows % rows == 0;
}

bool usable(const void* data, int64_t columns, int64_t stride, int64_t element_bytes) {
  return at_whole_chunk(data) && stride >= columns && stride * element_bytes % 16 == 0;
}

Format format_of(Output type) { return type == Output::e4m3 ? Format::e4m3 : Format::e5m2; }

int64_t element_bytes(Output type) { return type == Output::f32 ? 4 : is_fp8(type) ? 1 : 2; }

Request request_of(const CudaContext& context, const GemmArgs& args, Output out) {
  Request r{};
  r.a = args.a.format;
  r.b = args.b.format;
  r.a_scaling = args.a_scale_inv.scaling;
  r.b_scaling = args.b_scale_inv.scaling;
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
  // Rows that pad a are not computed, unless the library counts in more than one.
  p.m = args.a.rows % multiples_for(request.a_scaling).a_rows == 0 ? args.a.rows : a.rows;
  p.n = b.rows;
  p.k = a.cols;
  p.a = a.data;
  p.b = b.data;
  p.a_stride = p.m <= 1 ? a.cols : a.stride;
  p.b_stride = b.rows <= 1 ? b.cols : b.stride;
  p.fast_accum = args.fast_accum && !is_block(request.a_scaling);  // a permission, which blocks have no use for
  return p;
}

void set_scales(const CudaContext& context, const GemmArgs& args, Product& p) {
  p.a_scale_inv = laid_out(context, args.a_scale_inv, p.m);
  p.b_scale_inv = laid_out(context, args.b_scale_inv, p.n);
}

// The whole product in one cublasLtMatmul, if operands and output lie as it needs them and it has an algorithm.
bool run_native(const CudaContext& context, const Request& request, const Codes& a, const Codes& b,
                const GemmArgs& args, const Target& target) {
  const int64_t columns = args.b.rows;
  if (!usable(target.data, columns, target.stride, element_bytes(target.type))) return false;
  const void* aux = args.aux ? args.aux : args.aux_out;
  if (aux && !usable(aux, columns, args.aux_stride, int64_t(size_of(args.aux_dtype)))) return false;
  Product p = product_of(request, a, b, args);
  if (p.m != args.a.rows || p.n != args.b.rows) return false;
  set_scales(context, args, p);
  p.d = target.data;
  p.d_stride = target.stride;
  p.accumulate = target.accumulate;
  p.bias = usable_bias(context, args);
  p.bias_dtype = args.bias_rounding;
  p.aux = const_cast<void*>(aux);
  p.aux_stride = args.aux_stride;
  if (is_fp8(target.type)) {
    p.d_scale = target.out_scale;
    p.d_amax = static_cast<float*>(context.allocate(sizeof(float), context.state));
    check(cudaMemsetAsync(p.d_amax, 0, sizeof(float), stream_of(context)), "cudaMemsetAsync");
  }
  if (!run(context, p)) return false;
  if (is_fp8(target.type)) {
    const Codes q{static_cast<const uint8_t*>(target.data), format_of(target.type), p.m, p.n, p.n};
    finish_fp8(context, q, p.d_amax, target.out_scale, target.scale_inv, target.amax);
  }
  return true;
}

// An FP32 product without epilogue in workspace memory, which every supported library and arch has. Row scales are left
// to the kernel behind it.
const float* run_plain(const CudaContext& context, Request request, const Codes& a, const Codes& b,
                       const GemmArgs& args) {
  request.epilogue = Epilogue::none;
  request.bias = request.aux = false;
  request.out = Output::f32;
  if (request.a_scaling == Scaling::row) request.a_scaling = request.b_scaling = Scaling::tensor;
  Product p = product_of(request, a, b, args);
  if (args.a_scale_inv.scaling != Scaling::row) set_scales(context, args, p);
  p.d = context.allocate(p.m * p.n * int64_t(sizeof(float)), context.state);
  p.d_stride = p.n;
  p.followed = true;
  if (run(context, p)) return static_cast<const float*>(p.d);
  throw std::runtime_error("transcast: cuBLASLt has no algorithm for " + describe(p) +
                           "; padding M, N and K to multiples of 128, or CUBLASLT_LOG_LEVEL=5, may tell more");
}

void finish(const CudaContext& context, const GemmArgs& args, const float* acc, int64_t acc_stride,
            const Target& target) {
  EpilogueArgs e{};
  e.acc = acc;
  e.acc_stride = acc_stride;
  e.gemm = &args;
  e.by_row = acc && args.a_scale_inv.scaling == Scaling::row;
  e.accumulate = target.accumulate;
  if (is_fp8(target.type)) {
    epilogue_fp8(context, e, target.out_scale, format_of(target.type), static_cast<uint8_t*>(target.data),
                 target.scale_inv, target.amax);
  } else {
    e.out = target.data;
    e.out_dtype = DType(int(target.type));
    e.out_stride = target.stride;
    epilogue(context, e);
  }
}

void multiply(const CudaContext& context, const GemmArgs& args, const Target& target) {
  const Request request = request_of(context, args, target.type);
  const Support verdict = support(request);
  if (verdict.way == Way::refused) {
    throw std::invalid_argument(std::string("transcast::") + (is_fp8(target.type) ? "gemm_fp8: " : "gemm: ") +
                                verdict.why + ", got " + describe(product_of(request, args.a, args.b, args)));
  }
  if (args.a.rows == 0 || args.b.rows == 0 || args.a.cols == 0) return finish(context, args, nullptr, 0, target);
  const Multiples of = multiples_for(args.a_scale_inv.scaling);
  const Codes a = usable(args.a, of.a_rows, of.columns) ? args.a : padded(context, args.a, of.columns);
  const Codes b = usable(args.b, of.b_rows, of.columns) ? args.b : padded(context, args.b, of.columns);
  if (verdict.way == Way::native && run_native(context, request, a, b, args, target)) return;
  finish(context, args, run_plain(context, request, a, b, args), b.rows, target);
}

}  // namespace
}  // namespace cuda

void gemm(const Context& context, const GemmArgs& args, void* out, DType out_dtype, int64_t out_stride,
          bool accumulate) {
  if (args.a.rows == 0 || args.b.rows == 0) return;
  cuda::multiply(context, args, {out, cuda::output_of(out_dtype), out_stride, accumulate, nullptr, nullptr, nullptr});
}

void gemm_fp8(const Context& context, const GemmArgs& args, const float* out_scale, Format format, uint8_t* q,
              float* scale_inv, float* amax) {
  cuda::multiply(context, args, {q, cuda::output_of(format), args.b.rows, false, out_scale, scale_inv, amax});
}

}  // namespace transcast
