// Kernels around cuBLASLt, each element read once and written once. Columns go to neighbouring lanes.
#include "cuda/gemm_kernels.h"

#include "core/act.h"
#include "cuda/convert.cuh"
#include "cuda/finish.cuh"
#include "cuda/launch.cuh"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int64_t kBlocksPerMultiprocessor = 8;

uint32_t grid_for(const CudaContext& context, int64_t blocks) {
  const int64_t most = kBlocksPerMultiprocessor * figures(context).multiprocessors;
  return uint32_t(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

// ---- padding: a warp copies 512 columns of a row.

struct PadArgs {
  Input in;
  int64_t rows, columns, padded_rows, padded_columns;
  Global<uint8_t> out;
};

__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ PadArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t pieces = (args.padded_columns + 511) / 512, all = args.padded_rows * pieces;
  for (int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; i < all; i += int64_t(gridDim.x) * kWarps) {
    const int64_t row = i / pieces, column = i % pieces * 512, left = args.columns - column;
    const int valid = row >= args.rows || left < 0 ? 0 : left < 512 ? int(left) : 512;
    const Global<const uint8_t> start = args.in.data + offset_of(row, args.in.stride, column);
    uint4 chunk, next;
    load_window<32, 1>(args.in, start, valid, lane, chunk, next);
    const uint4 codes = window<32>(chunk, next, start, valid, lane);
    const int64_t at = column + 16 * lane;
    stg((args.out + offset_of(row, args.padded_columns, at)).as<uint4>(), codes, at < args.padded_columns);
  }
}

// ---- values of any high-precision dtype

__device__ __forceinline__ float widened(DType dtype, uint16_t bits) {
  return dtype == DType::bf16 ? float_of(uint32_t(bits) << 16) : half_to_float(bits);
}

__device__ __forceinline__ float load(Global<const uint8_t> data, DType dtype, int64_t i, bool ok) {
  if (dtype == DType::f32) return float_of(ldg((data + 4 * i).as<const uint32_t>(), ok));
  return widened(dtype, ldg((data + 2 * i).as<const uint16_t>(), ok));
}

// Of memory that this kernel writes, too.
__device__ __forceinline__ float load_written(Global<uint8_t> data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return float_of(ldcg((data + 4 * i).as<uint32_t>()));
  return widened(dtype, ldcg((data + 2 * i).as<uint16_t>()));
}

__device__ __forceinline__ uint16_t narrow(DType dtype, float value) {
  return uint16_t(dtype == DType::bf16 ? narrow2<BF16>(value, 0.0f) : narrow2<F16>(value, 0.0f));
}

__device__ __forceinline__ void store(Global<uint8_t> data, DType dtype, int64_t i, float value, bool ok) {
  if (dtype == DType::f32) {
    stg((data + 4 * i).as<uint32_t>(), bits_of(value), ok);
  } else {
    stg((data + 2 * i).as<uint16_t>(), narrow(dtype, value), ok);
  }
}

__device__ __forceinline__ float rounded(DType dtype, float value) {
  return dtype == DType::f32 ? value : widened(dtype, narrow(dtype, value));
}

// ---- epilogue: one element per lane.

struct Device {
  int64_t rows, columns;
  Global<const float> acc;
  int64_t acc_stride;
  Global<const float> a_scale_inv, b_scale_inv;
  bool scale_per_row;
  Global<const uint8_t> bias;
  DType bias_dtype, bias_rounding;
  Epilogue epilogue;
  Global<const uint8_t> aux;
  Global<uint8_t> aux_out;
  DType aux_dtype;
  int64_t aux_stride;
  Global<uint8_t> out;
  DType out_dtype;
  int64_t out_stride;
  bool accumulate;
  Global<const float> out_scale;  // FP8 only
  Format format;
  Finish finish;
};

__device__ __forceinline__ float finished(const Device& d, int64_t row, int64_t column) {
  float y = 0;
  if (d.acc.address) y = ldg(d.acc + offset_of(row, d.acc_stride, column), true);
  if (d.a_scale_inv.address) {
    y = (y * ldg(d.a_scale_inv + (d.scale_per_row ? row : 0), true)) * ldg(d.b_scale_inv + (d.scale_per_row ? column : 0), true);
  }
  const int64_t at = offset_of(row, d.out_stride, column), aux_at = offset_of(row, d.aux_stride, column);
  if (d.accumulate) y += load_written(d.out, d.out_dtype, at);
  if (d.bias.address) y += rounded(d.bias_rounding, load(d.bias, d.bias_dtype, column, true));
  if (d.aux_out.address) store(d.aux_out, d.aux_dtype, aux_at, y, true);
  if (d.epilogue == Epilogue::relu) y = y < 0.0f ? 0.0f : y;  // NaN stays
  if (d.epilogue == Epilogue::gelu_tanh) y = gelu_tanh(y);
  if (d.epilogue == Epilogue::dgelu) y *= dgelu_tanh(load(d.aux, d.aux_dtype, aux_at, true));
  return y;
}

__global__ void __launch_bounds__(kThreads) epilogue_kernel(const __grid_constant__ Device d) {
  const int64_t elements = d.rows * d.columns, step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / d.columns, column = i - row * d.columns;
    store(d.out, d.out_dtype, offset_of(row, d.out_stride, column), finished(d, row, column), true);
  }
}

__global__ void __launch_bounds__(kThreads) epilogue_fp8_kernel(const __grid_constant__ Device d) {
  Maxima& maxima = shared<Maxima>();
  const int64_t elements = d.rows * d.columns, step = int64_t(gridDim.x) * kThreads;
  const float scale = ldg(d.out_scale, true);
  uint32_t amax = 0;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / d.columns, column = i - row * d.columns;
    const float y = finished(d, row, column);
    amax = larger(amax, bits_of(y) & 0x7fffffffu);
    const uint32_t code = d.format == Format::e4m3 ? encode2<E4M3>(y * scale, 0.0f) : encode2<E5M2>(y * scale, 0.0f);
    stg(d.out + i, uint8_t(code), true);
  }
  publish(maxima, amax);
  __syncthreads();
  finish_block(d.finish, maxima, gridDim.x);
}

Device device_args(const EpilogueArgs& args) {
  const GemmArgs& gemm = *args.gemm;
  Device d{};
  d.rows = gemm.a.rows;
  d.columns = gemm.b.rows;
  d.acc = {args.acc};
  d.acc_stride = args.acc_stride;
  d.a_scale_inv = {args.a_scale_inv};
  d.b_scale_inv = {args.b_scale_inv};
  d.scale_per_row = args.scale_per_row;
  d.bias = {static_cast<const uint8_t*>(gemm.bias)};
  d.bias_dtype = gemm.bias_dtype;
  d.bias_rounding = gemm.bias_rounding;
  d.epilogue = gemm.epilogue;
  d.aux = {static_cast<const uint8_t*>(gemm.aux)};
  d.aux_out = {static_cast<uint8_t*>(gemm.aux_out)};
  d.aux_dtype = gemm.aux_dtype;
  d.aux_stride = gemm.aux_stride;
  d.out = {static_cast<uint8_t*>(args.out)};
  d.out_dtype = args.out_dtype;
  d.out_stride = args.out_stride;
  d.accumulate = args.accumulate;
  return d;
}

__global__ void finish_fp8_kernel(Global<const float> out_scale, Global<float> amax, Global<float> scale_inv) {
  const uint32_t bits = bits_of(ldcg(amax)) & 0x7fffffffu;
  stg(scale_inv, scale_inv_of(ldg(out_scale, true), bits), true);
  stg(amax, canonical(float_of(bits)), true);
}

__global__ void __launch_bounds__(kThreads)
    bias_kernel(Global<const uint8_t> bias, DType from, DType to, int64_t n, Global<uint8_t> out) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  store(out, to, i, load(bias, from, i, i < n), i < n);
}

int64_t blocks_for(int64_t elements) { return (elements + kThreads - 1) / kThreads; }

}  // namespace

Codes padded(const CudaContext& context, const Codes& in) {
  const int64_t rows = round_up(in.rows, kPadding), columns = round_up(in.cols, kPadding);
  auto* out = static_cast<uint8_t*>(context.allocate(rows * columns, context.state));
  const Input input{{in.data}, {in.data + (in.rows - 1) * in.stride + in.cols}, in.stride};
  const PadArgs args{input, in.rows, in.cols, rows, columns, {out}};
  const int64_t warps = rows * ((columns + 511) / 512);
  launch(pad_kernel, dim3(grid_for(context, (warps + kWarps - 1) / kWarps)), dim3(kThreads), 0, stream_of(context), args);
  return {out, in.format, rows, columns, columns};
}

void epilogue(const CudaContext& context, const EpilogueArgs& args) {
  const Device d = device_args(args);
  launch(epilogue_kernel, dim3(grid_for(context, blocks_for(d.rows * d.columns))), dim3(kThreads), 0, stream_of(context), d);
}

void epilogue_fp8(const CudaContext& context, const EpilogueArgs& args, const float* out_scale, Format format, uint8_t* q,
                  float* scale_inv, float* amax) {
  Device d = device_args(args);
  d.out = {q};
  d.out_scale = {out_scale};
  d.format = format;
  d.finish.slot = {take_slot(context)};
  d.finish.given_scale = {out_scale};
  d.finish.amax = {amax};
  d.finish.scale_inv = {scale_inv};
  launch(epilogue_fp8_kernel, dim3(grid_for(context, blocks_for(d.rows * d.columns))), dim3(kThreads), sizeof(Maxima),
         stream_of(context), d);
}

void finish_fp8(const CudaContext& context, const float* out_scale, float* amax, float* scale_inv) {
  launch(finish_fp8_kernel, dim3(1), dim3(1), 0, stream_of(context), Global<const float>{out_scale}, Global<float>{amax},
         Global<float>{scale_inv});
}

const void* rounded_bias(const CudaContext& context, const GemmArgs& args) {
  if (args.bias == nullptr || args.bias_dtype == args.bias_rounding) return args.bias;
  const int64_t n = args.b.rows;
  auto* out = static_cast<uint8_t*>(context.allocate(n * int64_t(size_of(args.bias_rounding)), context.state));
  launch(bias_kernel, dim3(uint32_t(blocks_for(n))), dim3(kThreads), 0, stream_of(context),
         Global<const uint8_t>{static_cast<const uint8_t*>(args.bias)}, args.bias_dtype, args.bias_rounding, n,
         Global<uint8_t>{out});
  return out;
}

}  // namespace transcast::cuda
