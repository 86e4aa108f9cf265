// Global memory that a kernel must not touch, or that two of its threads must not both touch.
#include "emu/example.h"

namespace {

constexpr int kThreads = 32, kBlocks = 3, kWords = kThreads * kBlocks;

struct Memory {
  Buffer<uint32_t> in{kWords, false}, out{kWords}, counter{1};
};

struct Args {
  bool wrong;
  Global<const uint32_t> in;
  Global<uint32_t> out, counter;
};

__device__ int index() { return int(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void misaligned_kernel(Args args) {
  const auto bytes = args.in.as<const uint8_t>();
  ldg((bytes + (args.wrong ? 4 : 8)).as<const uint2>(), threadIdx.x == 0);
}

__global__ void load_beyond_kernel(Args args) { ldg(args.in + (index() + 1), index() < kWords - !args.wrong); }
__global__ void store_beyond_kernel(Args args) { stg(args.out + (index() + 1), 1u, index() < kWords - !args.wrong); }

__global__ void read_only_kernel(Args args) {
  Global<uint32_t> in{const_cast<uint32_t*>(args.in.address)};
  stg(args.wrong ? in + index() : args.out + index(), 1u, true);
}

__global__ void two_blocks_kernel(Args args) {
  const int before = args.wrong && blockIdx.x == 2 ? kThreads : 0;
  stg(args.out + (index() - before), 1u, true);
}

// Bytes of one word, of two neighbours.
__global__ void two_threads_kernel(Args args) {
  const uint32_t byte = args.wrong && threadIdx.x == 6 ? 5 : threadIdx.x;
  stg(args.out.as<uint8_t>() + byte, uint8_t(1), blockIdx.x == 0);
}

__global__ void load_after_store_kernel(Args args) {
  stg(args.out + index(), 1u, true);
  if (args.wrong) ldg(Global<const uint32_t>{args.out.address} + index(), threadIdx.x == 9);
}

__global__ void in_place_kernel(Args args) {
  const Global<const uint32_t> from{args.wrong ? args.out.address : args.in.address};
  stg(args.out + index(), ldg(from + index(), true) + 1, true);
}

// Each block adds its part to one word.
__global__ void lost_atomic_kernel(Args args) {
  if (threadIdx.x != 0) return;
  if (args.wrong) {
    stg(args.counter, ldg(Global<const uint32_t>{args.counter.address}, true) + 1, true);
  } else {
    atomic_inc(args.counter, kBlocks);
  }
}

__global__ void weakened_atomic_kernel(Args args) {
  if (threadIdx.x != 0) return;
  if (args.wrong && blockIdx.x == 1) {
    stg(args.counter, blockIdx.x, true);
  } else {
    atomic_max(args.counter, blockIdx.x);
  }
}

__global__ void plain_load_kernel(Args args) {
  if (threadIdx.x != 0) return;
  atomic_max(args.counter, blockIdx.x);
  if (args.wrong) ldg(Global<const uint32_t>{args.counter.address}, true);
}

// The order in which threads come by.
__global__ void arrival_kernel(Args args) {
  const uint32_t turn = atomic_inc(args.counter, 0xffffffffu);
  __syncwarp();
  stg(args.out + turn, uint32_t(index()), true);
}

// What the op has allocated itself: one word of it is read that no launch has written.
__global__ void workspace_kernel(Args args) { stg(args.out + index(), 1u, !args.wrong || index() != 40); }
__global__ void from_workspace_kernel(Args args) { ldg(args.in + index(), true); }

template <class Kernel>
emu::Numbers run(Kernel kernel, Memory& memory, bool wrong) {
  launch(kernel, dim3(kBlocks), dim3(kThreads), 0, emu::stream(),
         Args{wrong, memory.in.read_only(), memory.out.global(), memory.counter.global()});
  return memory.out.numbers();
}

template <class Kernel>
emu::Numbers run(Kernel kernel, const emu::Numbers& arguments) {
  Memory memory;
  return run(kernel, memory, arguments.at(0) != 0);
}

EMU_EXAMPLE(misaligned_global_access) { return run(misaligned_kernel, arguments); }
EMU_EXAMPLE(load_one_beyond) { return run(load_beyond_kernel, arguments); }
EMU_EXAMPLE(store_one_beyond) { return run(store_beyond_kernel, arguments); }
EMU_EXAMPLE(store_to_a_read_only_argument) { return run(read_only_kernel, arguments); }
EMU_EXAMPLE(two_blocks_store_a_byte) { return run(two_blocks_kernel, arguments); }
EMU_EXAMPLE(two_threads_store_a_byte) { return run(two_threads_kernel, arguments); }
EMU_EXAMPLE(plain_load_after_a_store) { return run(load_after_store_kernel, arguments); }
EMU_EXAMPLE(store_after_a_plain_load) { return run(in_place_kernel, arguments); }
EMU_EXAMPLE(lost_atomic) { return run(lost_atomic_kernel, arguments); }
EMU_EXAMPLE(weakened_atomic) { return run(weakened_atomic_kernel, arguments); }
EMU_EXAMPLE(plain_load_of_an_atomic) { return run(plain_load_kernel, arguments); }

EMU_EXAMPLE(load_of_what_nothing_has_written) {
  Memory memory;
  const emu::Uninitialized workspace(memory.out);
  const Args args{arguments.at(0) != 0, {memory.out.global().address}, memory.out.global(), {}};
  launch(workspace_kernel, dim3(kBlocks), dim3(kThreads), 0, emu::stream(), args);
  launch(from_workspace_kernel, dim3(kBlocks), dim3(kThreads), 0, emu::stream(), args);
  return {};
}
EMU_EXAMPLE(atomic_on_what_nothing_has_written) {
  Memory memory;
  const emu::Uninitialized slot(memory.counter);
  const size_t bytes = arguments.at(0) ? 2 : 4;
  cudaMemsetAsync(memory.counter.global().address, 0, bytes, emu::stream());
  return run(lost_atomic_kernel, memory, false);
}

// blocks, threads -> the index of each thread, in the order of their arrival.
EMU_EXAMPLE(arrival_order) {
  const auto blocks = uint32_t(arguments.at(0)), threads = uint32_t(arguments.at(1));
  Buffer<uint32_t> out(blocks * threads), counter(1);
  launch(arrival_kernel, dim3(blocks), dim3(threads), 0, emu::stream(),
         Args{false, {}, out.global(), counter.global()});
  return out.numbers();
}

// A word of memory that the runtime gave, or one at any address.
__global__ void one_word_kernel(Global<uint32_t> word) { stg(word, 1u, threadIdx.x == 0); }

emu::Numbers store_a_word(uint32_t* word) {
  launch(one_word_kernel, dim3(1), dim3(kThreads), 0, emu::stream(), Global<uint32_t>{word});
  return {};
}

EMU_EXAMPLE(store_to_memory_of_the_runtime) {
  static void* const memory = [] {
    void* given = nullptr;
    check(cudaMalloc(&given, 64), "cudaMalloc");
    return given;
  }();
  return store_a_word(static_cast<uint32_t*>(memory) + arguments.at(0));
}

EMU_EXAMPLE(store_to_an_address) { return store_a_word(reinterpret_cast<uint32_t*>(arguments.at(0))); }

}  // namespace
