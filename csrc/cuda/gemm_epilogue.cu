// Behind a GEMM, each element read once and written once: columns go to neighbouring lanes.
#include "cuda/gemm_epilogue.h"

#include "core/act.h"
#include "cuda/finish.cuh"
#include "cuda/gemm_values.cuh"
#include "cuda/grid.h"

namespace transcast::cuda {
namespace {

constexpr int kThreads = 256;

// Of memory that this kernel writes, too.
__device__ __forceinline__ float load_written(Global<uint8_t> data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return float_of(ldcg((data + 4 * i).as<uint32_t>()));
  return widened(dtype, ldcg((data + 2 * i).as<uint16_t>()));
}

__device__ __forceinline__ float rounded(DType dtype, float value) {
  return dtype == DType::f32 ? value : widened(dtype, narrow(dtype, value));
}

// ---- Eight columns per thread.

struct EpilogueDevice {
  int64_t rows, columns;
  bool whole;  // eight columns of any matrix lie on 16 bytes
  Global<const float> acc;
  int64_t acc_stride;
  Global<const float> a_scale_inv, b_scale_inv;  // of rows; or null
  int64_t a_scale_stride, b_scale_stride;
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

// Eight columns of a row, `valid` of which are there.
struct Piece {
  int64_t row, column;
  int valid;
};

__device__ __forceinline__ Piece piece_of(const EpilogueDevice& d, int64_t i) {
  const int64_t across = ceil_div(d.columns, 8), row = i / across, column = 8 * (i - row * across);
  const int64_t left = row < d.rows ? d.columns - column : 0;
  return {row, column, left < 8 ? int(left) : 8};
}

__device__ __forceinline__ void finish8(const EpilogueDevice& d, const Piece& at, float (&y)[8]) {
  const int64_t out_at = offset_of(at.row, d.out_stride, at.column);
  const int64_t aux_at = offset_of(at.row, d.aux_stride, at.column);
  if (d.acc.address) {
    load8(d.acc.as<const uint8_t>(), DType::f32, offset_of(at.row, d.acc_stride, at.column), at.valid, d.whole, y);
  }
  float aux[8];
  if (d.epilogue == Epilogue::dgelu) load8(d.aux, d.aux_dtype, aux_at, at.valid, d.whole, aux);
  float row_scale = 1.0f;
  if (d.a_scale_inv.address) row_scale = ldg(d.a_scale_inv + at.row * d.a_scale_stride, at.valid > 0);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const bool ok = e < at.valid;
    if (d.a_scale_inv.address) {
      y[e] = (y[e] * row_scale) * ldg(d.b_scale_inv + (at.column + e) * d.b_scale_stride, ok);
    }
    if (d.accumulate && ok) y[e] += load_written(d.out, d.out_dtype, out_at + e);
    if (d.bias.address) y[e] += rounded(d.bias_rounding, load(d.bias, d.bias_dtype, at.column + e, ok));
  }
  if (d.aux_out.address) store8(d.aux_out, d.aux_dtype, aux_at, y, at.valid, d.whole);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (d.epilogue == Epilogue::relu) y[e] = y[e] < 0.0f ? 0.0f : y[e];  // NaN stays
    if (d.epilogue == Epilogue::gelu_tanh) y[e] = gelu_tanh(y[e]);
    if (d.epilogue == Epilogue::dgelu) y[e] *= dgelu_tanh(aux[e]);
  }
}

TRANSCAST_HD int64_t pieces_of(const EpilogueDevice& d) { return d.rows * ceil_div(d.columns, 8); }

__global__ void __launch_bounds__(kThreads) epilogue_kernel(const __grid_constant__ EpilogueDevice d) {
  const int64_t pieces = pieces_of(d), step = int64_t(gridDim.x) * kThreads;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < pieces; first += step) {
    const Piece at = piece_of(d, first + threadIdx.x);
    float y[8] = {};
    finish8(d, at, y);
    store8(d.out, d.out_dtype, offset_of(at.row, d.out_stride, at.column), y, at.valid, d.whole);
  }
}

__global__ void __launch_bounds__(kThreads) epilogue_fp8_kernel(const __grid_constant__ EpilogueDevice d) {
  Maxima& maxima = shared<Maxima>();
  const int64_t pieces = pieces_of(d), step = int64_t(gridDim.x) * kThreads;
  const float scale = ldg(d.out_scale, true);
  uint32_t amax = 0;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < pieces; first += step) {
    const Piece at = piece_of(d, first + threadIdx.x);
    float y[8] = {};
    finish8(d, at, y);
#pragma unroll
    for (int e = 0; e < 8; ++e) amax = larger(amax, e < at.valid ? bits_of(y[e]) & 0x7fffffffu : 0u);
    uint32_t codes[2];
    encode8<EitherFormat>(y, scale, d.format, codes);
    const Global<uint8_t> q = d.out + offset_of(at.row, d.columns, at.column);
    stg(q.as<uint2>(), make_uint2(codes[0], codes[1]), d.whole && at.valid > 0);
#pragma unroll
    for (int e = 0; e < 8; ++e) stg(q + e, uint8_t(codes[e / 4] >> (8 * (e % 4))), !d.whole && e < at.valid);
  }
  publish(maxima, amax);
  __syncthreads();
  finish_block(d.finish, maxima, gridDim.x);
}

EpilogueDevice device_args(const EpilogueArgs& args) {
  const GemmArgs& gemm = *args.gemm;
  EpilogueDevice d{};
  d.rows = gemm.a.rows;
  d.columns = gemm.b.rows;
  d.acc = {args.acc};
  d.acc_stride = args.acc_stride;
  if (args.by_row) {
    d.a_scale_inv = {static_cast<const float*>(gemm.a_scale_inv.data)};
    d.b_scale_inv = {static_cast<const float*>(gemm.b_scale_inv.data)};
    d.a_scale_stride = gemm.a_scale_inv.row_stride;
    d.b_scale_stride = gemm.b_scale_inv.row_stride;
  }
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
  const auto whole = [&](const void* data, int64_t stride, DType dtype) {
    return data == nullptr || in_whole_chunks(data, d.rows, stride * int64_t(size_of(dtype)));
  };
  const void* aux = gemm.aux ? gemm.aux : gemm.aux_out;
  d.whole = d.columns % 8 == 0 && whole(args.acc, args.acc_stride, DType::f32) &&
            whole(args.out, args.out_stride, args.out_dtype) && whole(aux, gemm.aux_stride, gemm.aux_dtype);
  return d;
}

// ---- FP8 output of the library

struct FinishFp8Args {
  Global<const uint8_t> q;
  int64_t chunks;
  uint32_t step;  // in each byte: what lifts a NaN's magnitude, and no other's, to 0x80
  Global<float> library_amax;
  Finish finish;
};

__global__ void __launch_bounds__(kThreads) finish_fp8_kernel(const __grid_constant__ FinishFp8Args args) {
  Maxima& maxima = shared<Maxima>();
  uint32_t nans = 0;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < args.chunks; first += int64_t(gridDim.x) * kThreads) {
    const int64_t i = first + threadIdx.x;
    const uint4 codes = ldg((args.q + 16 * i).as<const uint4>(), i < args.chunks);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) nans |= ((words[w] & 0x7f7f7f7fu) + args.step) & 0x80808080u;
  }
  publish(maxima, nans != 0 ? kNanBits : bits_of(ldcg(args.library_amax)) & 0x7fffffffu);
  __syncthreads();
  finish_block(args.finish, maxima, gridDim.x);
}

Finish finish_of(const CudaContext& context, const float* out_scale, float* amax, float* scale_inv) {
  Finish finish{};
  finish.slot = {take_slot(context)};
  finish.given_scale = {out_scale};
  finish.amax = {amax};
  finish.scale_inv = {scale_inv};
  return finish;
}

}  // namespace

void epilogue(const CudaContext& context, const EpilogueArgs& args) {
  const EpilogueDevice d = device_args(args);
  launch(epilogue_kernel, dim3(blocks_in_turns(context, ceil_div(pieces_of(d), kThreads))), dim3(kThreads), 0,
         stream_of(context), d);
}

void epilogue_fp8(const CudaContext& context, const EpilogueArgs& args, const float* out_scale, Format format,
                  uint8_t* q, float* scale_inv, float* amax) {
  EpilogueDevice d = device_args(args);
  d.out = {q};
  d.whole = d.whole && reinterpret_cast<uintptr_t>(q) % 8 == 0;
  d.out_scale = {out_scale};
  d.format = format;
  d.finish = finish_of(context, out_scale, amax, scale_inv);
  launch(epilogue_fp8_kernel, dim3(blocks_in_turns(context, ceil_div(pieces_of(d), kThreads))), dim3(kThreads),
         sizeof(Maxima), stream_of(context), d);
}

void finish_fp8(const CudaContext& context, const Codes& q, float* library_amax, const float* out_scale,
                float* scale_inv, float* amax) {
  FinishFp8Args args{};
  args.q = {q.data};
  args.chunks = q.rows * q.cols / 16;
  args.step = 0x01010101u * (q.format == Format::e4m3 ? 0x80 - 0x7f : 0x80 - 0x7d);
  args.library_amax = {library_amax};
  args.finish = finish_of(context, out_scale, amax, scale_inv);
  launch(finish_fp8_kernel, dim3(blocks_in_turns(context, ceil_div(args.chunks, kThreads))), dim3(kThreads),
         sizeof(Maxima), stream_of(context), args);
}

}  // namespace transcast::cuda
