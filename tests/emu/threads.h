// The threads of the running block: for block.cpp, which lets them run, and warp.cpp, where the lanes of a warp meet.
#pragma once

#include <vector_types.h>

#include "emu/block.h"
#include "emu/faults.h"
#include "emu/fiber.h"

namespace emu {

enum class State : uint8_t { ready, at_barrier, in_warp, done };

struct Thread {
  Fiber fiber;
  bool started;  // the fiber waits inside of its main function
  uint3 index;
  Site site;  // where it waits
};

extern Thread threads[kMaxThreads];
extern State states[kMaxThreads];
extern int thread_count;
extern bool stuck;  // a fault has left threads nowhere to go: the block is given up

void become(int thread);  // the built-in variables are that thread's
void pause();             // of the running thread: others run, until this one is ready and has its turn

// A fault of `thread`, which waits, after which the block is given up.
template <class... Parts>
void give_up(int thread, const char* kind, const Parts&... parts) {
  const int running = running_thread();
  become(thread);
  fault(threads[thread].site, kind, parts...);
  become(running);
  stuck = true;
}

void begin_warps();  // a block begins: no lane waits

// If the call in which the thread waits can never be complete, because a lane has exited or waits elsewhere for this
// one: gives up. Otherwise says whether it is complete.
bool all_lanes_here(int thread);
uint32_t mask_of_call(int thread);

}  // namespace emu
