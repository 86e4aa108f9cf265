// FP8 back to FP32, BF16 or FP16.
//
// Whole chunks: each lane loads 16 codes. What it makes of them fills two (16-bit types) or four (FP32) 16-byte chunks of y;
// groups of that many lanes swap codes first, so that each store of a group fills whole sectors. Other layouts go one
// element per lane. Per element: one byte read, the element written.
#include "cuda/convert.cuh"
#include "cuda/launch.cuh"
#include "cuda/segment.cuh"
#include "cuda/state.h"

namespace transcast::cuda {
namespace {

constexpr int kWarps = 8, kLaneCodes = 16, kWarpCodes = 32 * kLaneCodes, kBlockCodes = kWarps * kWarpCodes;
constexpr int64_t kBlocksPerMultiprocessor = 8;

struct Args {
  Global<const uint8_t> q;
  int64_t stride;
  Global<uint8_t> y;  // contiguous
  int64_t rows, columns;
  Global<const float> scale_inv;
};

// A transpose among kGroup neighbouring lanes: afterwards word i of lane m is what was word m of lane i. log2(kGroup) steps
// of half the words each.
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

// Four values at y; each of them `ok`.
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

template <class T, class Fp8>
__global__ void __launch_bounds__(32 * kWarps) chunks_kernel(const __grid_constant__ Args args) {
  constexpr int kGroup = kElementBytes<T>;  // 16-byte chunks of y per lane: 2 or 4
  const int lane = threadIdx.x % 32, member = lane % kGroup;
  const float scale_inv = ldg(args.scale_inv, true);
  const int64_t chunks_per_row = args.columns / kLaneCodes, chunks = args.rows * chunks_per_row;
  const int64_t step = int64_t(gridDim.x) * 32 * kWarps;
  // Warps stay whole for the exchange: the bound is that of the warp's first lane.
  for (int64_t base = int64_t(blockIdx.x) * 32 * kWarps + threadIdx.x - lane; base < chunks; base += step) {
    const int64_t chunk = base + lane;
    const int64_t row = args.rows == 1 ? 0 : chunk / chunks_per_row;
    const int64_t column = (chunk - row * chunks_per_row) * kLaneCodes;
    const uint4 codes = ldg((args.q + offset_of(row, args.stride, column)).as<const uint4>(), chunk < chunks);
    // Lane m of a group has codes m, of which chunk i of y needs a part. After the exchange it has part m of every lane's.
    uint32_t part[4] = {codes.x, codes.y, codes.z, codes.w};
    if constexpr (kGroup == 4) {
      exchange<4>(part, lane);
    } else {
      uint32_t low[2] = {part[0], part[2]}, high[2] = {part[1], part[3]};
      exchange<2>(low, lane);
      exchange<2>(high, lane);
      part[0] = low[0], part[1] = high[0], part[2] = low[1], part[3] = high[1];
    }
    constexpr int kWords = 4 / kGroup;  // of codes per chunk of y
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      uint32_t words[4];
      if constexpr (kWords == 1) {
        four<T, Fp8>(part[i], scale_inv, words);
      } else {
        uint32_t first[2], second[2];
        four<T, Fp8>(part[2 * i], scale_inv, first);
        four<T, Fp8>(part[2 * i + 1], scale_inv, second);
        words[0] = first[0], words[1] = first[1], words[2] = second[0], words[3] = second[1];
      }
      const int64_t from = chunk - member + i;  // the chunk of codes that this is a part of
      stg((args.y + (from * kGroup + member) * 16).as<uint4>(), make_uint4(words[0], words[1], words[2], words[3]),
          from < chunks);
    }
  }
}

template <class T, class Fp8>
__global__ void __launch_bounds__(32 * kWarps) elements_kernel(const __grid_constant__ Args args) {
  using Storage = typename T::storage;
  const float scale_inv = ldg(args.scale_inv, true);
  const int64_t elements = args.rows * args.columns, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / args.columns;
    float v[4];
    decode4<Fp8>(ldg(args.q + offset_of(row, args.stride, i - row * args.columns), true), v);
    Storage y;
    if constexpr (T::dtype == DType::f32) {
      y = bits_of(v[0] * scale_inv);
    } else {
      y = Storage(narrow2<T>(v[0] * scale_inv, 0.0f));
    }
    stg((args.y + i * kElementBytes<T>).template as<Storage>(), y, true);
  }
}

}  // namespace
}  // namespace transcast::cuda

namespace transcast {

void dequantize(const Context& context, const DequantizeArgs& args) {
  using namespace cuda;
  const Codes& q = args.q;
  const int64_t elements = q.rows * q.cols;
  if (elements == 0) return;
  const bool contiguous = q.rows == 1 || q.stride == q.cols;
  Args device{{q.data}, q.stride, {static_cast<uint8_t*>(args.y)}, q.rows, q.cols, {args.scale_inv}};
  if (contiguous) device.rows = 1, device.columns = elements, device.stride = elements;
  const bool chunks = reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && device.columns % kLaneCodes == 0 &&
                      (device.rows == 1 || q.stride % 16 == 0);
  const int64_t per_block = chunks ? kBlockCodes : 32 * kWarps;
  const int64_t wanted = (elements + per_block - 1) / per_block;
  const int64_t most = kBlocksPerMultiprocessor * figures(context).multiprocessors;
  const dim3 grid(uint32_t(wanted < most ? wanted : most)), block(32 * kWarps);
  visit(args.dtype, [&](auto t) {
    visit(q.format, [&](auto fp8) {
      using T = decltype(t);
      using Fp8 = decltype(fp8);
      launch(chunks ? chunks_kernel<T, Fp8> : elements_kernel<T, Fp8>, grid, block, 0, stream_of(context), device);
    });
  });
}

}  // namespace transcast
