// FP8 back to FP32, BF16 or FP16.
//
// Chunks: each lane takes 16 codes. What it makes of them fills two (16-bit types) or four (FP32) 16-byte units of y;
// groups of that many lanes swap codes first, so that each store of a group fills whole sectors. Contiguous codes may
// begin at any address, and what is left of them after the last whole unit goes one element per lane. Rows with strides
// go in chunks if they are aligned, else one element per lane. Per element: one byte read, the element written.
#include "cuda/convert.cuh"
#include "cuda/grid.h"
#include "cuda/launch.cuh"
#include "cuda/segment.cuh"
#include "cuda/state.h"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8, kLaneCodes = 16, kWarpCodes = 32 * kLaneCodes, kBlockCodes = kWarps * kWarpCodes;

struct Args {
  Input q;
  Global<uint8_t> y;  // contiguous
  int64_t rows, columns;
  Global<const float> scale_inv;
};

// A transpose among kGroup neighbouring lanes: afterwards word i of lane m is what was word m of lane i. log2(kGroup)
// steps of half the words each.
template <int kGroup>
__device__ __forceinline__ void exchange(uint32_t (&words)[kGroup], int lane) {
#pragma unroll
  for (int distance = 1; distance < kGroup; distance *= 2) {
    const bool upper = lane & distance;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i & distance) continue;
      const uint32_t received = __shfl_xor_sync(kAllLanes, upper ? words[i] : words[i + distance], distance);
      (upper ? words[i] : words[i + distance]) = received;
    }
  }
}

// Four codes to the words of y that they become.
template <class T, class Fp8>
__device__ __forceinline__ void four(uint32_t codes, float scale_inv, uint32_t (&words)[4 * kElementBytes<T> / 4]) {
  float v[4];
  decode4<Fp8>(codes, v);
  if constexpr (T::dtype == DType::f32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = bits_of(v[i] * scale_inv);
  } else {
    words[0] = narrow2<T>(v[0] * scale_inv, v[1] * scale_inv);
    words[1] = narrow2<T>(v[2] * scale_inv, v[3] * scale_inv);
  }
}

// Codes of the lane's chunk, `lane` chunks after `first`; zeros from `chunks` on.
__device__ __forceinline__ void load_chunk(const Args& args, int64_t first, int64_t chunks, int lane,
                                           Raw<Aligned, 1>& raw) {
  const int64_t chunk = first + lane, chunks_per_row = args.columns / kLaneCodes;
  const int64_t row = args.rows == 1 ? 0 : chunk / chunks_per_row;
  const int64_t column = (chunk - row * chunks_per_row) * kLaneCodes;
  raw.chunk[0] = ldg((args.q.data + offset_of(row, args.q.stride, column)).as<const uint4>(), chunk < chunks);
}

// Of contiguous codes: how many of them lie in the warp's chunks from `first` on.
__device__ __forceinline__ int codes_from(const Args& args, int64_t first) {
  const int64_t left = args.columns - first * kLaneCodes;
  return left < kWarpCodes ? int(left) : kWarpCodes;
}

__device__ __forceinline__ void load_chunk(const Args& args, int64_t first, int64_t, int lane, Raw<Unaligned, 1>& raw) {
  load_window<32, 1>(args.q, args.q.data + first * kLaneCodes, codes_from(args, first), lane, raw.chunk[0],
                     raw.next[0]);
}

__device__ __forceinline__ uint4 codes_in_place(const Args&, int64_t, int, const Raw<Aligned, 1>& raw) {
  return raw.chunk[0];
}

__device__ __forceinline__ uint4 codes_in_place(const Args& args, int64_t first, int lane,
                                                const Raw<Unaligned, 1>& raw) {
  return window<32>(raw.chunk[0], raw.next[0], args.q.data + first * kLaneCodes, codes_from(args, first), lane);
}

// Writes the first `units` 16-byte units of y.
template <class T, class Fp8>
__device__ __forceinline__ void store_chunk(const Args& args, uint4 codes, int64_t chunk, int64_t units, int lane,
                                            float scale_inv) {
  constexpr int kGroup = kElementBytes<T>;  // units per lane: 2 or 4
  const int member = lane % kGroup;
  // Lane m of a group has codes m, of which unit i needs a part. After the exchange it has part m of every lane's.
  uint32_t part[4] = {codes.x, codes.y, codes.z, codes.w};
  if constexpr (kGroup == 4) {
    exchange<4>(part, lane);
  } else {
    uint32_t low[2] = {part[0], part[2]}, high[2] = {part[1], part[3]};
    exchange<2>(low, lane);
    exchange<2>(high, lane);
    part[0] = low[0], part[1] = high[0], part[2] = low[1], part[3] = high[1];
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    uint32_t words[4];
    if constexpr (kGroup == 4) {
      four<T, Fp8>(part[i], scale_inv, words);
    } else {
      uint32_t first[2], second[2];
      four<T, Fp8>(part[2 * i], scale_inv, first);
      four<T, Fp8>(part[2 * i + 1], scale_inv, second);
      words[0] = first[0], words[1] = first[1], words[2] = second[0], words[3] = second[1];
    }
    const int64_t unit = (chunk - member + i) * kGroup + member;
    stg((args.y + unit * 16).as<uint4>(), make_uint4(words[0], words[1], words[2], words[3]), unit < units);
  }
}

template <class T, class Fp8>
__device__ __forceinline__ void one_element(const Args& args, int64_t row, int64_t column, float scale_inv, bool ok) {
  using Storage = typename T::storage;
  float v[4];
  decode4<Fp8>(ldg(args.q.data + offset_of(row, args.q.stride, column), ok), v);
  Storage y;
  if constexpr (T::dtype == DType::f32) {
    y = bits_of(v[0] * scale_inv);
  } else {
    y = Storage(narrow2<T>(v[0] * scale_inv, 0.0f));
  }
  const int64_t element = row * args.columns + column;
  stg((args.y + element * kElementBytes<T>).template as<Storage>(), y, ok);
}

template <class T, class Fp8, class Access>
__global__ void __launch_bounds__(32 * kWarps) chunks_kernel(const __grid_constant__ Args args) {
  // Four loads in flight; an unaligned chunk takes two.
  constexpr int kTurn = std::is_same_v<Access, Unaligned> ? 2 : 4;
  constexpr int kUnitElements = 16 / kElementBytes<T>;
  const int lane = threadIdx.x % 32;
  const float scale_inv = ldg(args.scale_inv, true);
  const int64_t elements = args.rows * args.columns, units = elements / kUnitElements;
  const int64_t chunks = ceil_div(elements, kLaneCodes), step = int64_t(gridDim.x) * 32 * kWarps;
  // Warps stay whole for the exchange: the bound is that of the warp's first lane.
  for (int64_t base = int64_t(blockIdx.x) * 32 * kWarps + threadIdx.x - lane; base < chunks; base += kTurn * step) {
    Raw<Access, 1> raw[kTurn];
#pragma unroll
    for (int i = 0; i < kTurn; ++i) load_chunk(args, base + i * step, chunks, lane, raw[i]);
#pragma unroll
    for (int i = 0; i < kTurn; ++i) {
      const int64_t first = base + i * step;
      if (first >= chunks) break;
      const uint4 codes = codes_in_place(args, first, lane, raw[i]);
      store_chunk<T, Fp8>(args, codes, first + lane, units, lane, scale_inv);
    }
  }
  if constexpr (std::is_same_v<Access, Unaligned>) {
    const int64_t last = units * kUnitElements + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < 32) one_element<T, Fp8>(args, 0, last, scale_inv, last < elements);
  }
}

template <class T, class Fp8>
__global__ void __launch_bounds__(32 * kWarps) elements_kernel(const __grid_constant__ Args args) {
  const float scale_inv = ldg(args.scale_inv, true);
  const int64_t elements = args.rows * args.columns, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / args.columns;
    one_element<T, Fp8>(args, row, i - row * args.columns, scale_inv, true);
  }
}

template <class T, class Fp8>
void run(const CudaContext& context, const Args& args) {
  const bool whole = in_whole_chunks(args.q.data.address, args.rows, args.q.stride) && args.columns % kLaneCodes == 0;
  const bool elements = !whole && args.rows > 1;
  const int64_t wanted = ceil_div(args.rows * args.columns, elements ? 32 * kWarps : kBlockCodes);
  const auto kernel = elements ? elements_kernel<T, Fp8>
                      : whole  ? chunks_kernel<T, Fp8, Aligned>
                               : chunks_kernel<T, Fp8, Unaligned>;
  launch(kernel, dim3(blocks_in_turns(context, wanted)), dim3(32 * kWarps), 0, stream_of(context), args);
}

}  // namespace
}  // namespace transcast::cuda

namespace transcast {

void dequantize(const Context& context, const DequantizeArgs& args) {
  using namespace cuda;
  const Codes& q = args.q;
  if (q.rows == 0 || q.cols == 0) return;
  const Input in{{q.data}, {q.data + (q.rows - 1) * q.stride + q.cols}, q.stride};
  Args device{in, {static_cast<uint8_t*>(args.y)}, q.rows, q.cols, {args.scale_inv}};
  if (q.rows == 1 || q.stride == q.cols) device.rows = 1, device.columns = q.rows * q.cols;
  visit(args.dtype, [&](auto t) {
    visit(q.format, [&](auto fp8) { run<decltype(t), decltype(fp8)>(context, device); });
  });
}

}  // namespace transcast
