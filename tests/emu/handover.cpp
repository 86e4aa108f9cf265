#include "emu/handover.h"

#include <algorithm>

#include "emu/block.h"

namespace emu {
namespace {

// The running block has made an atomic on a word, behind `before` other ones.
struct Meeting {
  const Atomics* atomics;
  size_t before;
  uint32_t thread;
  uint32_t fence;  // time of the thread's next fence, 0: not yet
};

struct Fence {
  uint32_t time, barrier;
};

std::vector<Meeting> meetings;  // of the running block
uint32_t meetings_of;
Fence fences[kMaxThreads];  // the last of each thread; one from before the block is none

std::vector<Meeting>& own_meetings() {
  if (meetings_of != block_began()) meetings.clear();
  meetings_of = block_began();
  return meetings;
}

// Whether the atomic publishes the event: a fence lies between, and a barrier if another thread made it.
bool publishes(const Atomic& atomic, const Event& event) {
  return event.time < (event.thread == atomic.event.thread ? atomic.fence : atomic.barrier);
}

bool published(const Meeting& meeting, const Event& event) {
  const auto end = meeting.atomics->begin() + std::ptrdiff_t(meeting.before);
  auto at = std::lower_bound(meeting.atomics->begin(), end, event.sequence,
                             [](const Atomic& atomic, uint32_t sequence) { return atomic.event.sequence < sequence; });
  for (; at != end && at->event.sequence == event.sequence; ++at) {
    if (publishes(*at, event)) return true;
  }
  return false;
}

bool received(const Meeting& meeting) {
  if (meeting.fence == 0) return false;
  return meeting.thread == uint32_t(running_thread()) || meeting.fence < last_barrier();
}

}  // namespace

Event this_event() { return {sequence(), now(), uint32_t(running_thread())}; }

void note_atomic_on(Atomics& atomics) {
  own_meetings().push_back({&atomics, atomics.size(), uint32_t(running_thread()), 0});
  const Fence& fence = fences[running_thread()];
  const bool fenced = fence.time > block_began();
  atomics.push_back({this_event(), fenced ? fence.time : 0, fenced ? fence.barrier : 0});
}

void note_fence() {
  const uint32_t time = tick();
  fences[running_thread()] = {time, last_barrier()};
  for (Meeting& meeting : own_meetings()) {
    if (meeting.thread == uint32_t(running_thread()) && meeting.fence == 0) meeting.fence = time;
  }
}

const char* missing_between(const Event& event) {
  if (event.sequence == sequence()) {
    const bool ordered = event.thread == uint32_t(running_thread()) || event.time < last_barrier();
    return ordered ? nullptr : "a barrier";
  }
  const char* missing = "a fence and an atomic of that block after it, seen here by an atomic on the same word";
  for (const Meeting& meeting : own_meetings()) {
    if (!published(meeting, event)) continue;
    if (received(meeting)) return nullptr;
    missing = "a fence here after the atomic, or a barrier after that fence";
  }
  return missing;
}

void begin_handovers() {
  meetings.clear();
  meetings_of = 0;
}

}  // namespace emu
