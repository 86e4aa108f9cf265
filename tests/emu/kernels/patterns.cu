// Accesses of one warp or more whose sectors and wavefronts can be counted by hand.
#include "emu/example.h"

namespace {

struct Pattern {
  int64_t stride, offset, lanes;  // lane l accesses byte offset + l * stride, if l < lanes
};

template <class T>
__global__ void global_kernel(Pattern pattern, Global<const uint8_t> in, Global<uint8_t> out) {
  const auto lane = int64_t(threadIdx.x);
  const int64_t at = pattern.offset + lane * pattern.stride;
  const T value = ldg((in + at).as<const T>(), lane < pattern.lanes);
  stg((out + at).as<T>(), value, lane < pattern.lanes);
}

struct Smem {
  alignas(16) uint8_t byte[32 * 1024];
};

template <class T>
__global__ void shared_kernel(Pattern pattern) {
  Smem& smem = shared<Smem>();
  const auto lane = int64_t(threadIdx.x);
  auto& field = reinterpret_cast<T&>(smem.byte[(pattern.offset + lane * pattern.stride) % sizeof(Smem)]);
  if (lane < pattern.lanes) {
    sts(field, T{});
    lds(field);
  }
}

// Lanes 4 r to 4 r + 3 take part in instruction r of two.
__global__ void rows_kernel(Global<const uint32_t> in, Global<uint32_t> out) {
  for (uint32_t row = 0; row < 2; ++row) {
    const bool there = threadIdx.x / 4 == row;
    stg(out + threadIdx.x, ldg(in + threadIdx.x, there), there);
  }
}

// Two passes over the same bytes, and a barrier.
__global__ void twice_kernel(Global<const uint32_t> in, Global<uint32_t> counter) {
  for (int pass = 0; pass < 2; ++pass) ldg(in + threadIdx.x, true);
  __syncthreads();
  if (threadIdx.x == 0) atomic_inc(counter, 9);
}

Pattern pattern_of(const emu::Numbers& arguments) { return {arguments.at(1), arguments.at(2), arguments.at(3)}; }

template <class T>
void run_global(const Pattern& pattern) {
  Buffer<uint8_t> in(32 * 1024), out(32 * 1024);
  launch(global_kernel<T>, dim3(1), dim3(32), 0, emu::stream(), pattern, in.read_only(), out.global());
}

// width, stride, offset, lanes
EMU_EXAMPLE(global_pattern) {
  switch (arguments.at(0)) {
    case 1: run_global<uint8_t>(pattern_of(arguments)); break;
    case 4: run_global<uint32_t>(pattern_of(arguments)); break;
    case 8: run_global<uint2>(pattern_of(arguments)); break;
    default: run_global<uint4>(pattern_of(arguments));
  }
  return {};
}

template <class T>
void run_shared(const Pattern& pattern) {
  launch(shared_kernel<T>, dim3(1), dim3(32), sizeof(Smem), emu::stream(), pattern);
}

EMU_EXAMPLE(shared_pattern) {
  switch (arguments.at(0)) {
    case 1: run_shared<uint8_t>(pattern_of(arguments)); break;
    case 4: run_shared<uint32_t>(pattern_of(arguments)); break;
    case 8: run_shared<uint2>(pattern_of(arguments)); break;
    default: run_shared<uint4>(pattern_of(arguments));
  }
  return {};
}

EMU_EXAMPLE(rows_of_a_sector) {
  Buffer<uint32_t> in(32), out(32);
  launch(rows_kernel, dim3(1), dim3(32), 0, emu::stream(), in.read_only(), out.global());
  return {};
}

EMU_EXAMPLE(two_passes) {
  Buffer<uint32_t> in(64), counter(1);
  launch(twice_kernel, dim3(3), dim3(64), 0, emu::stream(), in.read_only(), counter.global());
  return {};
}

}  // namespace
