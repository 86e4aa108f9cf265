// Warp-wide exchanges with wrong masks and lanes.
#include "emu/example.h"

namespace {

constexpr uint32_t kAll = 0xffffffffu;

// A quarter of the lanes has left.
__global__ void exited_kernel(bool wrong) {
  if (threadIdx.x >= 24) return;
  __shfl_xor_sync(wrong ? kAll : 0xffffffu, threadIdx.x, 4);
}

__global__ void outsider_kernel(bool wrong) {
  if (threadIdx.x > 16 || (threadIdx.x == 16 && !wrong)) return;
  __shfl_xor_sync(0xffffu, threadIdx.x, 1);
}

__global__ void masks_kernel(bool wrong) {
  __shfl_xor_sync(wrong && threadIdx.x >= 16 ? kAll - 1 : kAll, threadIdx.x, 2);
}

// Two calls of the same kind at two places.
__global__ void places_kernel(bool wrong) {
  if (wrong && threadIdx.x < 16) {
    __any_sync(kAll, threadIdx.x == 3);
  } else {
    __any_sync(kAll, threadIdx.x == 3);
  }
}

__global__ void distance_kernel(bool wrong) {
  if (threadIdx.x >= 8) return;
  __shfl_xor_sync(0xffu, threadIdx.x, wrong ? 8 : 4);
}

struct Smem {
  uint32_t word[32];
};

// Lanes pass words on through shared memory.
__global__ void exchange_kernel(uint32_t mask) {
  Smem& smem = shared<Smem>();
  if (threadIdx.x >= 16) return;
  sts(smem.word[threadIdx.x], threadIdx.x);
  if (mask >> threadIdx.x & 1) __syncwarp(mask);
  lds(smem.word[(threadIdx.x + 1) % 16]);
}

// Lane 0 overwrites what others have read; first all lanes are in step, then the first eight only.
__global__ void overwrite_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  if (threadIdx.x == 0) sts(smem.word[0], 1u);
  __syncwarp();
  lds(smem.word[0]);
  if (!wrong) __syncwarp();
  if (threadIdx.x >= 8) return;
  lds(smem.word[0]);
  __syncwarp(0xff);
  if (threadIdx.x == 0) sts(smem.word[0], 2u);
}

// What the shuffles and votes give, per lane.
__global__ void values_kernel(Global<uint32_t> out) {
  const uint32_t lane = threadIdx.x;
  const uint32_t results[] = {
      __shfl_sync(kAll, lane, 5),          __shfl_sync(kAll, lane, int(lane) + 1, 8),
      __shfl_xor_sync(kAll, lane, 16),     __shfl_xor_sync(kAll, lane, 8, 8),
      __shfl_down_sync(kAll, lane, 3),     __shfl_down_sync(kAll, lane, 1, 16),
      __shfl_up_sync(kAll, lane, 3),       __shfl_up_sync(kAll, lane, 1, 16),
      __ballot_sync(kAll, lane % 3 == 0),  uint32_t(__any_sync(kAll, lane == 31)),
      uint32_t(__all_sync(kAll, lane < 31)), uint32_t(__shfl_xor_sync(kAll, float(lane), 1)),
  };
  constexpr int kResults = sizeof results / sizeof *results;
  for (int i = 0; i < kResults; ++i) stg(out + (i * 32 + lane), results[i], true);
}

template <class Kernel>
emu::Numbers run(Kernel kernel, const emu::Numbers& arguments) {
  launch(kernel, dim3(1), dim3(32), sizeof(Smem), emu::stream(), arguments.at(0) != 0);
  return {};
}

EMU_EXAMPLE(mask_with_exited_lanes) { return run(exited_kernel, arguments); }
EMU_EXAMPLE(lane_outside_of_its_mask) { return run(outsider_kernel, arguments); }
EMU_EXAMPLE(masks_that_differ) { return run(masks_kernel, arguments); }
EMU_EXAMPLE(calls_that_differ) { return run(places_kernel, arguments); }
EMU_EXAMPLE(shuffle_distance) { return run(distance_kernel, arguments); }
EMU_EXAMPLE(missing_syncwarp) {
  launch(exchange_kernel, dim3(1), dim3(32), sizeof(Smem), emu::stream(), arguments.at(0) ? 0u : 0xffffu);
  return {};
}
EMU_EXAMPLE(syncwarp_of_too_few_lanes) {
  launch(exchange_kernel, dim3(1), dim3(32), sizeof(Smem), emu::stream(), arguments.at(0) ? 0xffu : 0xffffu);
  return {};
}
EMU_EXAMPLE(overwritten_while_read) { return run(overwrite_kernel, arguments); }
EMU_EXAMPLE(warp_values) {
  Buffer<uint32_t> out(12 * 32);
  launch(values_kernel, dim3(1), dim3(32), 0, emu::stream(), out.global());
  return out.numbers();
}

}  // namespace
