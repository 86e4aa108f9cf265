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

// ---- eight of them, `valid` of which are there; `whole`: all or none, on 16 bytes

template <class T>
__device__ __forceinline__ void load_chunks(Global<const uint8_t> data, bool ok, float (&v)[8]) {
  Chunks<T> raw;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) raw.chunk[c] = ldg((data + 16 * c).as<const uint4>(), ok);
  widen(raw, v);
}

__device__ __forceinline__ void load8(Global<const uint8_t> data, DType dtype, int64_t i, int valid, bool whole,
                                      float (&v)[8]) {
  if (!whole) {
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = load(data, dtype, i + e, e < valid);
  } else if (dtype == DType::f32) {
    load_chunks<F32>(data + 4 * i, valid > 0, v);
  } else if (dtype == DType::bf16) {
    load_chunks<BF16>(data + 2 * i, valid > 0, v);
  } else {
    load_chunks<F16>(data + 2 * i, valid > 0, v);
  }
}

__device__ __forceinline__ void store8(Global<uint8_t> data, DType dtype, int64_t i, const float (&v)[8], int valid,
                                       bool whole) {
  if (!whole) {
#pragma unroll
    for (int e = 0; e < 8; ++e) store(data, dtype, i + e, v[e], e < valid);
    return;
  }
  const bool ok = valid > 0;
  if (dtype == DType::f32) {
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
      const uint4 chunk = make_uint4(bits_of(v[c]), bits_of(v[c + 1]), bits_of(v[c + 2]), bits_of(v[c + 3]));
      stg((data + 4 * (i + c)).as<uint4>(), chunk, ok);
    }
    return;
  }
  uint32_t pair[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float first = v[2 * p], second = v[2 * p + 1];
    pair[p] = dtype == DType::bf16 ? narrow2<BF16>(first, second) : narrow2<F16>(first, second);
  }
  stg((data + 2 * i).as<uint4>(), make_uint4(pair[0], pair[1], pair[2], pair[3]), ok);
}

// ---- epilogue: eight columns per thread.

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
  const int64_t across = (d.columns + 7) / 8, row = i / across, column = 8 * (i - row * across);
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

TRANSCAST_HD int64_t pieces_of(int64_t rows, int64_t columns) { return rows * ((columns + 7) / 8); }

__global__ void __launch_bounds__(kThreads) epilogue_kernel(const __grid_constant__ EpilogueDevice d) {
  const int64_t pieces = pieces_of(d.rows, d.columns), step = int64_t(gridDim.x) * kThreads;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < pieces; first += step) {
    const Piece at = piece_of(d, first + threadIdx.x);
    float y[8] = {};
    finish8(d, at, y);
    store8(d.out, d.out_dtype, offset_of(at.row, d.out_stride, at.column), y, at.valid, d.whole);
  }
}

__global__ void __launch_bounds__(kThreads) epilogue_fp8_kernel(const __grid_constant__ EpilogueDevice d) {
  Maxima& maxima = shared<Maxima>();
  const int64_t pieces = pieces_of(d.rows, d.columns), step = int64_t(gridDim.x) * kThreads;
  const float scale = ldg(d.out_scale, true);
  uint32_t amax = 0;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < pieces; first += step) {
    const Piece at = piece_of(d, first + threadIdx.x);
    float y[8] = {};
    finish8(d, at, y);
#pragma unroll
    for (int e = 0; e < 8; ++e) amax = larger(amax, e < at.valid ? bits_of(y[e]) & 0x7fffffffu : 0u);
    uint32_t codes[2];
    if (d.format == Format::e4m3) {
      encode8<E4M3>(y, scale, codes);
    } else {
      encode8<E5M2>(y, scale, codes);
    }
    const Global<uint8_t> q = d.out + offset_of(at.row, d.columns, at.column);
    stg(q.as<uint2>(), make_uint2(codes[0], codes[1]), d.whole && at.valid > 0);
#pragma unroll
    for (int e = 0; e < 8; ++e) stg(q + e, uint8_t(codes[e / 4] >> (8 * (e % 4))), !d.whole && e < at.valid);
  }
  publish(maxima, amax);
  __syncthreads();
  finish_block(d.finish, maxima, gridDim.x);
}

bool is_whole(const void* data, int64_t row_bytes) {
  return (reinterpret_cast<uintptr_t>(data) | uintptr_t(row_bytes)) % 16 == 0;
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
  const int64_t out_bytes = args.out ? args.out_stride * int64_t(size_of(args.out_dtype)) : 0;
  const void* aux = gemm.aux ? gemm.aux : gemm.aux_out;
  d.whole = d.columns % 8 == 0 && is_whole(args.acc, args.acc_stride * int64_t(sizeof(float))) &&
            is_whole(args.out, out_bytes) && is_whole(aux, gemm.aux_stride * int64_t(size_of(gemm.aux_dtype)));
  return d;
}

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

__global__ void __launch_bounds__(kThreads)
    bias_kernel(Global<const uint8_t> bias, DType from, DType to, int64_t n, Global<uint8_t> out) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  store(out, to, i, load(bias, from, i, i < n), i < n);
}

int64_t blocks_for(int64_t elements) { return (elements + kThreads - 1) / kThreads; }

}  // namespace

Codes padded(const CudaContext& context, const Codes& in, int64_t multiple) {
  const int64_t rows = round_up(in.rows, kPadding), columns = round_up(in.cols, multiple);
  auto* out = static_cast<uint8_t*>(context.allocate(rows * columns, context.state));
  const Input input{{in.data}, {in.data + (in.rows - 1) * in.stride + in.cols}, in.stride};
  const PadArgs args{input, in.rows, in.cols, rows, columns, {out}};
  const int64_t warps = rows * ((columns + 511) / 512);
  launch(pad_kernel, dim3(grid_for(context, (warps + kWarps - 1) / kWarps)), dim3(kThreads), 0, stream_of(context),
         args);
  return {out, in.format, rows, columns, columns};
}

void epilogue(const CudaContext& context, const EpilogueArgs& args) {
  const EpilogueDevice d = device_args(args);
  launch(epilogue_kernel, dim3(grid_for(context, blocks_for(pieces_of(d.rows, d.columns)))), dim3(kThreads), 0,
         stream_of(context), d);
}

void epilogue_fp8(const CudaContext& context, const EpilogueArgs& args, const float* out_scale, Format format,
                  uint8_t* q, float* scale_inv, float* amax) {
  EpilogueDevice d = device_args(args);
  d.out = {q};
  d.whole = d.whole && reinterpret_cast<uintptr_t>(q) % 8 == 0;
  d.out_scale = {out_scale};
  d.format = format;
  d.finish.slot = {take_slot(context)};
  d.finish.given_scale = {out_scale};
  d.finish.amax = {amax};
  d.finish.scale_inv = {scale_inv};
  launch(epilogue_fp8_kernel, dim3(grid_for(context, blocks_for(pieces_of(d.rows, d.columns)))), dim3(kThreads),
         sizeof(Maxima), stream_of(context), d);
}

void finish_fp8(const CudaContext& context, const Codes& q, float* library_amax, const float* out_scale,
                float* scale_inv, float* amax) {
  FinishFp8Args args{};
  args.q = {q.data};
  args.chunks = q.rows * q.cols / 16;
  args.step = 0x01010101u * (q.format == Format::e4m3 ? 0x80 - 0x7f : 0x80 - 0x7d);
  args.library_amax = {library_amax};
  args.finish.slot = {take_slot(context)};
  args.finish.given_scale = {out_scale};
  args.finish.amax = {amax};
  args.finish.scale_inv = {scale_inv};
  launch(finish_fp8_kernel, dim3(grid_for(context, blocks_for(args.chunks))), dim3(kThreads), sizeof(Maxima),
         stream_of(context), args);
}

const void* usable_bias(const CudaContext& context, const GemmArgs& args) {
  const bool on_16_bytes = reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
  if (args.bias == nullptr || (args.bias_dtype == args.bias_rounding && on_16_bytes)) return args.bias;
  const int64_t n = args.b.rows;
  auto* out = static_cast<uint8_t*>(context.allocate(n * int64_t(size_of(args.bias_rounding)), context.state));
  launch(bias_kernel, dim3(uint32_t(blocks_for(n))), dim3(kThreads), 0, stream_of(context),
         Global<const uint8_t>{static_cast<const uint8_t*>(args.bias)}, args.bias_dtype, args.bias_rounding, n,
         Global<uint8_t>{out});
  return out;
}

}  // namespace transcast::cuda
