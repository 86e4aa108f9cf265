// Shared memory used wrongly by threads between two barriers, or beyond the kernel's struct.
#include "emu/example.h"

namespace {

constexpr int kThreads = 64;

struct Smem {
  uint32_t word[kThreads];
  uint8_t byte[kThreads];
};

__global__ void unwritten_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  const bool writes = threadIdx.x != 5 || !wrong;
  if (writes) sts(smem.word[threadIdx.x], 1u);
  __syncthreads();
  lds(smem.word[threadIdx.x]);
}

__global__ void outside_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  sts(smem.byte[threadIdx.x + (wrong && threadIdx.x == 63)], uint8_t(1));
}

__global__ void misaligned_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  sts(smem.word[threadIdx.x], 1u);
  __syncthreads();
  if (threadIdx.x == 0) lds(*reinterpret_cast<const uint4*>(&smem.word[wrong ? 2 : 4]));
}

__global__ void struct_kernel() { sts(shared<Smem>().word[0], 1u); }

__global__ void same_word_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  sts(smem.word[wrong ? threadIdx.x % 63 : threadIdx.x], 1u);
}

// Bytes of one word belong to threads of their own.
__global__ void same_byte_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  sts(smem.byte[wrong ? threadIdx.x % 63 : threadIdx.x], uint8_t(1));
  __syncthreads();
  lds(*reinterpret_cast<const uint32_t*>(&smem.byte[threadIdx.x / 4 * 4]));
}

// Everybody reads a word, then one thread writes it for the next round.
__global__ void next_round_kernel(bool wrong) {
  Smem& smem = shared<Smem>();
  if (threadIdx.x == 0) sts(smem.word[0], 1u);
  __syncthreads();
  lds(smem.word[0]);
  if (!wrong) __syncthreads();
  if (threadIdx.x == 0) sts(smem.word[0], 2u);
}

__global__ void unrecorded_kernel(bool wrong, Global<uint32_t> out) {
  Smem& smem = shared<Smem>();
  sts(smem.word[threadIdx.x], 1u);
  stg(out + threadIdx.x, wrong ? smem.word[threadIdx.x] : lds(smem.word[threadIdx.x]), true);
}

__global__ void poison_kernel(Global<uint32_t> out) {
  Smem& smem = shared<Smem>();
  if (threadIdx.x == 0) stg(out + blockIdx.x, lds(smem.word[7]), true);
}

template <class Kernel>
emu::Numbers run(Kernel kernel, const emu::Numbers& arguments) {
  launch(kernel, dim3(1), dim3(kThreads), sizeof(Smem), emu::stream(), arguments.at(0) != 0);
  return {};
}

EMU_EXAMPLE(read_before_write) { return run(unwritten_kernel, arguments); }
EMU_EXAMPLE(outside_of_the_struct) { return run(outside_kernel, arguments); }
EMU_EXAMPLE(misaligned_shared_access) { return run(misaligned_kernel, arguments); }
EMU_EXAMPLE(struct_larger_than_the_launch_says) {
  launch(struct_kernel, dim3(1), dim3(1), sizeof(Smem) - (arguments.at(0) ? 1 : 0), emu::stream());
  return {};
}
EMU_EXAMPLE(two_writers_of_a_word) { return run(same_word_kernel, arguments); }
EMU_EXAMPLE(two_writers_of_a_byte) { return run(same_byte_kernel, arguments); }
EMU_EXAMPLE(overwritten_for_the_next_round) { return run(next_round_kernel, arguments); }
EMU_EXAMPLE(shared_access_without_lds) {
  Buffer<uint32_t> out(kThreads);
  launch(unrecorded_kernel, dim3(1), dim3(kThreads), sizeof(Smem), emu::stream(), arguments.at(0) != 0, out.global());
  return out.numbers();
}
EMU_EXAMPLE(shared_bytes_of_a_launch) {
  launch(struct_kernel, dim3(1), dim3(1), size_t(arguments.at(0)), emu::stream());
  return {};
}
EMU_EXAMPLE(shared_poison) {  // with races off, what a block finds in its shared memory
  Buffer<uint32_t> out(2);
  launch(poison_kernel, dim3(2), dim3(kThreads), sizeof(Smem), emu::stream(), out.global());
  return out.numbers();
}

}  // namespace
