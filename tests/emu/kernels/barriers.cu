// Barriers that are missing, divergent, or not reached by all. Each kernel is right unless it is told to be wrong.
#include "emu/example.h"

namespace {

constexpr int kThreads = 96;

struct Smem {
  uint32_t word[kThreads];
};

// Exchanges words between warps.
__global__ void exchange_kernel(bool wrong, Global<uint32_t> out) {
  Smem& smem = shared<Smem>();
  const uint32_t thread = threadIdx.x;
  sts(smem.word[thread], thread);
  if (!wrong) __syncthreads();
  stg(out + thread, lds(smem.word[(thread + 32) % kThreads]), true);
}

__global__ void divergent_kernel(bool wrong) {
  if (wrong && threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void skipped_kernel(bool wrong) {
  if (wrong && threadIdx.x >= 64) return;
  __syncthreads();
}

__global__ void loop_kernel(bool wrong) {
  const int turns = wrong ? 1 + int(threadIdx.x) / 64 : 2;
  for (int i = 0; i < turns; ++i) __syncthreads();
}

// Some lanes wait for the block, the others for those lanes.
__global__ void deadlock_kernel(bool wrong) {
  if (wrong && threadIdx.x < 8) __syncthreads();
  __shfl_xor_sync(0xffffffffu, threadIdx.x, 8);
  if (!(wrong && threadIdx.x < 8)) __syncthreads();
}

template <class Kernel>
emu::Numbers run(Kernel kernel, const emu::Numbers& arguments) {
  launch(kernel, dim3(2), dim3(kThreads), 0, emu::stream(), arguments.at(0) != 0);
  return {};
}

EMU_EXAMPLE(missing_barrier) {
  Buffer<uint32_t> out(kThreads);
  launch(exchange_kernel, dim3(1), dim3(kThreads), sizeof(Smem), emu::stream(), arguments.at(0) != 0, out.global());
  return out.numbers();
}
EMU_EXAMPLE(divergent_barrier) { return run(divergent_kernel, arguments); }
EMU_EXAMPLE(skipped_barrier) { return run(skipped_kernel, arguments); }
EMU_EXAMPLE(barrier_in_a_loop) { return run(loop_kernel, arguments); }
EMU_EXAMPLE(deadlock) { return run(deadlock_kernel, arguments); }

}  // namespace
