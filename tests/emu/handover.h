// Which of other threads' work comes before what the running thread does now: through a barrier within the block,
// between blocks through a fence, an atomic, an atomic on the same word, and a fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// A load, a store or an atomic that was made.
struct Event {
  uint32_t sequence;  // of its block
  uint32_t time;
  uint32_t thread;
};
Event this_event();

struct Atomic {
  Event event;
  uint32_t fence;    // time of the thread's last fence before it, 0: none
  uint32_t barrier;  // of the last barrier before that fence
};
// All atomics on one word in this launch, in the order in which blocks ran.
using Atomics = std::vector<Atomic>;

// The running thread makes an atomic on the word.
void note_atomic_on(Atomics&);
void note_fence();

// nullptr if the event comes before what the running thread does now; else what is missing.
const char* missing_between(const Event&);

void begin_handovers();  // a launch begins

}  // namespace emu
