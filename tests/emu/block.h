// One block of a grid at work: its threads as fibers, its barriers and warp-wide exchanges, and which of its events are
// ordered by them.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "emu/site.h"

// The built-in variables of CUDA, of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emu {

constexpr int kWarp = 32, kMaxThreads = 1024;

// The running thread and the time, by a clock that every barrier, every fence and every new block moves.
struct Progress {
  int thread;               // in its block
  uint32_t sequence;        // how many blocks of the launch ran before this one
  uint32_t time;
  uint32_t block_began;
  uint32_t last_barrier;    // or the block's beginning
  uint64_t barriers;        // passed so far, by all blocks
};
extern Progress progress;
inline int running_thread() { return progress.thread; }
inline int lane() { return running_thread() % kWarp; }

void barrier(Site);

// What the lanes of a mask do together.
struct WarpCall {
  enum Kind : uint8_t { sync, shuffle, ballot } kind;
  uint32_t mask;
  uint32_t value;
  int source;  // shuffle: the lane whose value is wanted
};
// The value of the source lane, or the mask of the lanes whose value is not 0.
uint32_t warp_call(const WarpCall&, Site);

// ---- Running

// What each thread does.
struct Body {
  void (*call)(const void* state);
  const void* state;
};

// Runs the block `index` of the launch, as the `sequence`th. After a fault that leaves threads nowhere to go, false.
bool run_block(const Body&, uint64_t index, uint32_t sequence);

// ---- Order of events

inline uint32_t sequence() { return progress.sequence; }
inline uint32_t now() { return progress.time; }
inline uint32_t tick() { return ++progress.time; }  // the new time
inline uint32_t block_began() { return progress.block_began; }
inline uint32_t last_barrier() { return progress.last_barrier; }

// Within a warp, between barriers: __syncwarp orders what lanes did. A lane's own count of them:
struct WarpClock {
  uint32_t time[kWarp];
  uint32_t seen[kWarp][kWarp];  // lane l comes after what lane m did before its time seen[l][m]
};
extern WarpClock clocks[kMaxThreads / kWarp];
inline uint32_t warp_time() { return clocks[running_thread() / kWarp].time[lane()]; }
// Whether the running thread, by a __syncwarp, comes after what `thread` of its warp did at its `time`.
inline bool after_in_warp(int thread, uint32_t time) {
  return clocks[running_thread() / kWarp].seen[lane()][thread % kWarp] > time;
}

}  // namespace emu
