#include "emu/block.h"

#include "emu/schedule.h"
#include "emu/threads.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emu {

Progress progress{0, 0, 1, 1, 1, 0};
Thread threads[kMaxThreads];
State states[kMaxThreads];
int thread_count;
bool stuck;

namespace {

Fiber scheduler;
Body body;
int at_barrier, finished;

void thread_main() {
  entered_fiber();
  for (;;) {
    body.call(body.state);
    states[running_thread()] = State::done;
    ++finished;
    pause();
  }
}

// One turn for each lane that is ready, or turns until none is. Returns whether any was.
bool run_warp(int first, bool until_it_waits) {
  const int lanes = thread_count - first < kWarp ? thread_count - first : kWarp;
  bool ran = false, again = true;
  while (again) {
    again = false;
    for (uint32_t lane : order(Who::lanes, uint32_t(lanes))) {
      const int thread = first + int(lane);
      if (states[thread] != State::ready) continue;
      become(thread);
      switch_fiber(scheduler, threads[thread].fiber);
      if (stuck) return true;
      ran = again = true;
    }
    again = again && until_it_waits;
  }
  return ran;
}

bool run_warps() {
  const bool until_it_waits = greedy();
  bool ran = false;
  for (uint32_t warp : order(Who::warps, uint32_t(thread_count + kWarp - 1) / kWarp)) {
    ran |= run_warp(int(warp) * kWarp, until_it_waits);
    if (stuck) break;
  }
  return ran;
}

// All threads that are left wait at barriers: lets them go on, if it is the same one for all threads of the block.
void pass_barrier() {
  int first = 0;
  while (states[first] != State::at_barrier) ++first;
  for (int i = first; i < thread_count; ++i) {
    if (states[i] != State::at_barrier || threads[i].site == threads[first].site) continue;
    return give_up(i, "divergent barrier", "thread ", first, " waits at ", name_of(threads[first].site));
  }
  if (finished) {
    return give_up(first, "a barrier that not all threads reach", finished, " of ", thread_count,
                   " threads have exited");
  }
  for (int i = 0; i < thread_count; ++i) states[i] = State::ready;
  at_barrier = 0;
  progress.last_barrier = tick();
  ++progress.barriers;
}

// Nobody can run, and it is no barrier that all have reached.
void explain_deadlock() {
  int in_warp = 0;
  for (int i = 0; i < thread_count && !stuck; ++i) {
    if (states[i] != State::in_warp) continue;
    in_warp = i;
    all_lanes_here(i);
  }
  if (stuck) return;
  give_up(in_warp, "deadlock", at_barrier, " threads wait at a barrier, ", finished,
          " have exited, this one waits for lanes of mask 0x", std::hex, mask_of_call(in_warp));
}

void begin_threads() {
  thread_count = int(blockDim.x * blockDim.y * blockDim.z);
  at_barrier = finished = 0;
  stuck = false;
  for (int i = 0; i < thread_count; ++i) {
    Thread& thread = threads[i];
    if (!thread.started) prepare(thread.fiber, size_t(i), thread_main);
    thread.started = true;
    thread.index = {uint32_t(i) % blockDim.x, uint32_t(i) / blockDim.x % blockDim.y,
                    uint32_t(i) / (blockDim.x * blockDim.y)};
    states[i] = State::ready;
  }
  begin_warps();
}

}  // namespace

void become(int thread) {
  progress.thread = thread;
  threadIdx = threads[thread].index;
}

void pause() { switch_fiber(threads[running_thread()].fiber, scheduler); }

void barrier(Site site) {
  states[running_thread()] = State::at_barrier;
  threads[running_thread()].site = site;
  ++at_barrier;
  pause();
}

bool run_block(const Body& what, uint64_t index, uint32_t sequence) {
  body = what;
  blockIdx = {uint32_t(index % gridDim.x), uint32_t(index / gridDim.x % gridDim.y),
              uint32_t(index / (uint64_t(gridDim.x) * gridDim.y))};
  progress.sequence = sequence;
  progress.block_began = progress.last_barrier = tick();
  scheduler.memory = scheduler.top = nullptr;  // it may be another thread's stack than at the last block
  begin_threads();
  while (finished < thread_count && !stuck) {
    const bool ran = run_warps();
    if (stuck || finished == thread_count) break;
    if (at_barrier && at_barrier + finished == thread_count) {
      pass_barrier();
    } else if (!ran) {
      explain_deadlock();
    }
  }
  for (int i = 0; stuck && i < thread_count; ++i) threads[i].started = states[i] == State::done;
  return !stuck;
}

}  // namespace emu
