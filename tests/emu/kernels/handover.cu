// The last block to arrive adds up what all blocks have left: right as it stands, and with one part of the handover
// missing.
#include "emu/example.h"

namespace {

constexpr int kThreads = 64, kBlocks = 5;

enum Missing { nothing, barrier_before, fence_before, store_before_fence, fence_after, barrier_after };

struct Args {
  Missing missing;
  bool exchanged;  // the sum of an atomic, taken by an exchange; otherwise of stored parts, by ldcg
  Global<uint32_t> parts, largest, ticket, out;
};

struct Smem {
  uint32_t last;
};

// Leaves the block's part; thread 1 stores it, or every thread adds to an atomic.
__device__ void leave(const Args& args) {
  const uint32_t value = blockIdx.x * kThreads + threadIdx.x;
  if (args.exchanged) {
    atomic_max(args.largest, value);
  } else {
    stg(args.parts + blockIdx.x, value, threadIdx.x == 1);
  }
}

__device__ bool arrive(const Args& args) {
  if (args.missing != fence_before) fence();
  if (args.missing == store_before_fence) stg(args.parts + blockIdx.x, 1u, true);
  return atomic_inc(args.ticket, kBlocks - 1) == kBlocks - 1;
}

__device__ void take(const Args& args) {
  uint32_t sum = 0;
  for (int block = 0; block < kBlocks && !args.exchanged; ++block) sum += ldcg(args.parts + block);
  if (args.exchanged) sum = atomic_exchange(args.largest, 0u);
  stg(args.out, sum, true);
}

__global__ void handover_kernel(Args args) {
  Smem& smem = shared<Smem>();
  if (args.missing != store_before_fence) leave(args);
  if (args.missing != barrier_before) __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = arrive(args);
    if (args.missing != fence_after) fence();
    sts(smem.last, uint32_t(last));
  }
  __syncthreads();
  if (threadIdx.x == 3 && lds(smem.last)) take(args);  // any thread, after a barrier
}

// A thread goes on without a barrier behind the fence of another one.
__global__ void other_thread_kernel(Args args) {
  Smem& smem = shared<Smem>();
  leave(args);
  __syncthreads();
  if (threadIdx.x == 0) sts(smem.last, uint32_t(arrive(args)));
  __syncthreads();
  if (threadIdx.x == 0) fence();
  if (args.missing == nothing) __syncthreads();
  if (threadIdx.x == 3 && lds(smem.last)) take(args);
}

template <class Kernel>
emu::Numbers run(Kernel kernel, Missing missing, bool exchanged) {
  Buffer<uint32_t> parts(kBlocks), largest(1), ticket(1), out(1);
  launch(kernel, dim3(kBlocks), dim3(kThreads), sizeof(Smem), emu::stream(),
         Args{missing, exchanged, parts.global(), largest.global(), ticket.global(), out.global()});
  return {out[0], largest[0], ticket[0]};
}

// arguments: wrong, exchanged
template <class Kernel>
emu::Numbers run(Kernel kernel, Missing missing, const emu::Numbers& arguments) {
  return run(kernel, arguments.at(0) ? missing : nothing, arguments.size() > 1 && arguments[1] != 0);
}

EMU_EXAMPLE(handover_without_barrier_before) { return run(handover_kernel, barrier_before, arguments); }
EMU_EXAMPLE(handover_without_fence_before) { return run(handover_kernel, fence_before, arguments); }
EMU_EXAMPLE(handover_with_store_behind_fence) { return run(handover_kernel, store_before_fence, arguments); }
EMU_EXAMPLE(handover_without_fence_after) { return run(handover_kernel, fence_after, arguments); }
EMU_EXAMPLE(handover_without_barrier_after) { return run(other_thread_kernel, barrier_after, arguments); }

// A block writes again what other blocks have changed by atomics.
__global__ void reset_kernel(bool wrong, Global<uint32_t> word, Global<uint32_t> ticket) {
  if (threadIdx.x != 0) return;
  atomic_max(word, blockIdx.x);
  fence();
  const bool last = atomic_inc(ticket, kBlocks - 1) == kBlocks - 1;
  fence();
  stg(word, 0u, wrong ? blockIdx.x == 2 : last);
}

EMU_EXAMPLE(reset_by_a_block_that_is_not_last) {
  Buffer<uint32_t> word(1), ticket(1);
  launch(reset_kernel, dim3(kBlocks), dim3(32), 0, emu::stream(), arguments.at(0) != 0, word.global(), ticket.global());
  return {word[0]};
}

// A block reads what another one stores, with nothing in between.
__global__ void peek_kernel(bool wrong, Global<uint32_t> words) {
  if (threadIdx.x == 0 && blockIdx.x == 1) stg(words, 1u, true);
  if (threadIdx.x == 0 && blockIdx.x != 1) ldcg(words + !wrong);
}

EMU_EXAMPLE(ldcg_without_handover) {
  Buffer<uint32_t> words(2);
  launch(peek_kernel, dim3(3), dim3(32), 0, emu::stream(), arguments.at(0) != 0, words.global());
  return {};
}

// The last block to arrive writes over what all of them have read.
__global__ void overwrite_kernel(bool wrong, bool exchanged, Global<uint32_t> word, Global<uint32_t> ticket) {
  if (threadIdx.x != 0) return;
  ldcg(word);
  if (!wrong) fence();
  const bool last = atomic_inc(ticket, kBlocks - 1) == kBlocks - 1;
  fence();
  stg(word, 1u, last && !exchanged);
  if (last && exchanged) atomic_exchange(word, 1u);
}

emu::Numbers overwrite(bool wrong, bool exchanged) {
  Buffer<uint32_t> word(1), ticket(1);
  launch(overwrite_kernel, dim3(kBlocks), dim3(32), 0, emu::stream(), wrong, exchanged, word.global(), ticket.global());
  return {word[0]};
}

EMU_EXAMPLE(store_over_what_other_blocks_read) { return overwrite(arguments.at(0) != 0, false); }
EMU_EXAMPLE(exchange_of_what_other_blocks_read) { return overwrite(arguments.at(0) != 0, true); }

// Each thread changes its half of a word; a wrong one has read its neighbour's.
__global__ void in_halves_kernel(bool wrong, Global<uint16_t> halves) {
  ldcg(halves + (threadIdx.x + wrong));
  stg(halves + threadIdx.x, uint16_t(1), true);
}

EMU_EXAMPLE(store_over_what_a_neighbour_reads) {
  Buffer<uint16_t> halves(kThreads + 1);
  launch(in_halves_kernel, dim3(1), dim3(kThreads), 0, emu::stream(), arguments.at(0) != 0, halves.global());
  return {};
}

}  // namespace
