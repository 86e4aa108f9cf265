// What nvcc gives every kernel, for a C++ compiler: CUDA's types and qualifiers from CUDA's own headers, and the
// built-in variables and functions that kernels of csrc/cuda use, executed by the emulator.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emu/block.h"

#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif

using std::max;
using std::min;

inline void __syncthreads(EMU_SITE) { emu::barrier({file, line}); }

inline void __syncwarp(uint32_t mask = 0xffffffffu, EMU_SITE) {
  emu::warp_call({emu::WarpCall::sync, mask, 0, 0}, {file, line});
}

// `lane` names the source within segments of `width` lanes, as CUDA defines it for each kind.
template <class T>
inline T shuffled(uint32_t mask, T value, int source, emu::Site site) {
  static_assert(sizeof(T) == 4, "the emulated shuffles move 4 bytes");
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = emu::warp_call({emu::WarpCall::shuffle, mask, bits, source}, site);
  memcpy(&value, &bits, sizeof bits);
  return value;
}

template <class T>
inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32, EMU_SITE) {
  const int lane = emu::lane(), segment = lane & ~(width - 1);
  return shuffled(mask, value, segment | (source & (width - 1)), {file, line});
}

template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int distance, int width = 32, EMU_SITE) {
  const int lane = emu::lane(), source = lane ^ distance;
  return shuffled(mask, value, source < (lane & ~(width - 1)) + width ? source : lane, {file, line});
}

template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, int distance, int width = 32, EMU_SITE) {
  const int lane = emu::lane(), source = lane + distance;
  return shuffled(mask, value, source < (lane & ~(width - 1)) + width ? source : lane, {file, line});
}

template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, int distance, int width = 32, EMU_SITE) {
  const int lane = emu::lane(), source = lane - distance;
  return shuffled(mask, value, source >= (lane & ~(width - 1)) ? source : lane, {file, line});
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate, EMU_SITE) {
  return emu::warp_call({emu::WarpCall::ballot, mask, predicate != 0, 0}, {file, line});
}

inline int __any_sync(uint32_t mask, int predicate, EMU_SITE) {
  return emu::warp_call({emu::WarpCall::ballot, mask, predicate != 0, 0}, {file, line}) != 0;
}

inline int __all_sync(uint32_t mask, int predicate, EMU_SITE) {
  return emu::warp_call({emu::WarpCall::ballot, mask, predicate != 0, 0}, {file, line}) == mask;
}

// Each nibble of `selector` names one of the eight bytes of b:a; its highest bit spreads that byte's sign.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15;
    uint32_t byte = uint32_t(bytes >> (8 * (nibble & 7))) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
