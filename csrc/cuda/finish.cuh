// Finishing without a second launch: every block adds its amax to a slot, the last one to arrive writes what follows
// from the whole matrix's amax.
#pragma once

#include "core/fp8.h"
#include "cuda/launch.cuh"
#include "cuda/segment.cuh"

namespace transcast::cuda {

constexpr int kMaxWarps = 16;

// Zeroed between uses: the block that finishes leaves amax and ticket at 0. Whose it is: state.cu. 32 bytes, so that
// slots share no sector.
struct alignas(32) Slot {
  uint32_t amax;
  uint32_t ticket;
  float scale;  // current scaling: what the cast after the amax pass reads
};

// What the last block writes. Null outputs are not written; without scale_inv no scale is made.
struct Finish {
  Global<Slot> slot;
  Global<const float> given_scale;  // or null: the scale is made from amax
  ScaleRule rule;
  float format_max;
  Global<float> amax, scale_inv, scale_inv_t;

  __device__ __forceinline__ Global<uint32_t> amax_word() const { return {&slot.address->amax}; }
  __device__ __forceinline__ Global<uint32_t> ticket_word() const { return {&slot.address->ticket}; }
  __device__ __forceinline__ Global<float> scale_word() const { return {&slot.address->scale}; }
};

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = larger(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// One word per warp; the caller's barrier separates publish from collect.
struct Maxima {
  uint32_t of_warp[kMaxWarps];
};

__device__ __forceinline__ void publish(Maxima& maxima, uint32_t amax) {
  amax = warp_max(amax);
  if (threadIdx.x % 32 == 0) sts(maxima.of_warp[threadIdx.x / 32], amax);
}

__device__ __forceinline__ void write_results(const Finish& finish, uint32_t amax) {
  stg(finish.amax, canonical(float_of(amax)), finish.amax.address != nullptr);
  if (finish.scale_inv.address == nullptr) return;
  const bool given = finish.given_scale.address != nullptr;
  const float scale = given ? ldg(finish.given_scale, true) : scale_from_amax(amax, finish.format_max, finish.rule);
  const float scale_inv = scale_inv_of(scale, amax);
  stg(finish.scale_inv, scale_inv, true);
  stg(finish.scale_inv_t, scale_inv, finish.scale_inv_t.address != nullptr);
  stg(finish.scale_word(), scale, !given);
}

// Called by every block of `blocks` once, after publish and a barrier.
__device__ __forceinline__ void finish_block(const Finish& finish, const Maxima& maxima, uint32_t blocks) {
  if (threadIdx.x >= 32) return;
  const uint32_t amax = warp_max(threadIdx.x < blockDim.x / 32 ? lds(maxima.of_warp[threadIdx.x]) : 0u);
  if (threadIdx.x != 0) return;
  atomic_max(finish.amax_word(), amax);
  fence();
  if (atomic_inc(finish.ticket_word(), blocks - 1) != blocks - 1) return;  // wraps to 0 for the slot's next use
  fence();
  write_results(finish, atomic_exchange(finish.amax_word(), 0u));
}

}  // namespace transcast::cuda
