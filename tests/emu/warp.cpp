// Where the lanes of a warp meet: shuffles, votes, __syncwarp.
#include "emu/threads.h"

namespace emu {

WarpClock clocks[kMaxThreads / kWarp];

namespace {

// The calls in which the lanes of a warp are.
struct Warp {
  uint32_t waiting;  // lanes
  bool different;    // not all of them in the same call
  WarpCall::Kind kind[kWarp];
  uint32_t mask[kWarp], value[kWarp], result[kWarp];
  int source[kWarp];
};
Warp warps[kMaxThreads / kWarp];

template <class Visit>
void each_lane(uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

bool same_call(const Warp& warp, int thread, int other) {
  const int a = thread % kWarp, b = other % kWarp;
  return warp.kind[a] == warp.kind[b] && warp.mask[a] == warp.mask[b] && threads[thread].site == threads[other].site;
}

void shuffle(Warp& warp, int base, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const int source = warp.source[lane] & (kWarp - 1);
    warp.result[lane] = warp.value[source];
    if (mask >> source & 1 || stuck) return;
    give_up(base + lane, "shuffle reads a lane outside of its mask", "lane ", source, ", mask 0x", std::hex, mask);
  });
}

void ballot(Warp& warp, uint32_t mask) {
  uint32_t votes = 0;
  each_lane(mask, [&](int lane) { votes |= uint32_t(warp.value[lane] != 0) << lane; });
  each_lane(mask, [&](int lane) { warp.result[lane] = votes; });
}

// What one of them comes after, all come after, and after what any of them has done.
void order(WarpClock& clock, uint32_t mask) {
  uint32_t latest = 0;
  each_lane(mask, [&](int lane) { latest = clock.time[lane] > latest ? clock.time[lane] : latest; });
  for (int other = 0; other < kWarp; ++other) {
    uint32_t seen = mask >> other & 1 ? latest + 1 : 0;
    each_lane(mask, [&](int lane) { seen = clock.seen[lane][other] > seen ? clock.seen[lane][other] : seen; });
    each_lane(mask, [&](int lane) { clock.seen[lane][other] = seen; });
  }
  each_lane(mask, [&](int lane) { clock.time[lane] = latest + 1; });
}

void finish(Warp& warp, int base, const WarpCall& call) {
  switch (call.kind) {
    case WarpCall::shuffle: shuffle(warp, base, call.mask); break;
    case WarpCall::ballot: ballot(warp, call.mask); break;
    case WarpCall::sync: order(clocks[base / kWarp], call.mask); break;
  }
  each_lane(call.mask, [&](int lane) { states[base + lane] = State::ready; });
  warp.waiting &= ~call.mask;
}

void enter(Warp& warp, int thread, const WarpCall& call) {
  const int lane = thread % kWarp;
  warp.kind[lane] = call.kind;
  warp.mask[lane] = call.mask;
  warp.value[lane] = call.value;
  warp.source[lane] = call.source;
  if (warp.waiting == 0) {
    warp.different = false;
  } else if (!warp.different) {
    warp.different = !same_call(warp, thread, thread - lane + __builtin_ctz(warp.waiting));
  }
  warp.waiting |= 1u << lane;
}

}  // namespace

void begin_warps() {
  for (Warp& warp : warps) warp.waiting = 0;
}

uint32_t mask_of_call(int thread) { return warps[thread / kWarp].mask[thread % kWarp]; }

bool all_lanes_here(int thread) {
  const Warp& warp = warps[thread / kWarp];
  const int base = thread / kWarp * kWarp;
  const uint32_t mask = mask_of_call(thread);
  bool here = true;
  each_lane(mask, [&](int lane) {
    const int other = base + lane;
    const bool gone = other >= thread_count || states[other] == State::done;
    if (stuck) return;
    if (gone) {
      give_up(thread, "a lane of the mask has exited", "lane ", lane, " of mask 0x", std::hex, mask);
    } else if (states[other] != State::in_warp) {
      here = false;
    } else if (!same_call(warp, thread, other)) {
      here = false;
      if (warp.mask[lane] >> (thread % kWarp) & 1) {
        give_up(thread, "lanes of one mask meet in different calls", "lane ", lane, " waits at ",
                name_of(threads[other].site), " with mask 0x", std::hex, warp.mask[lane], ", this one has mask 0x",
                mask);
      }
    }
  });
  return here && !stuck;
}

uint32_t warp_call(const WarpCall& call, Site site) {
  const int thread = running_thread(), lane = thread % kWarp;
  Warp& warp = warps[thread / kWarp];
  threads[thread].site = site;
  states[thread] = State::in_warp;
  enter(warp, thread, call);
  if (!(call.mask >> lane & 1)) {
    give_up(thread, "a lane outside of the mask it calls with", "mask 0x", std::hex, call.mask);
  } else if ((warp.waiting & call.mask) == call.mask && (!warp.different || all_lanes_here(thread))) {
    finish(warp, thread - lane, call);
  }
  if (stuck || states[thread] == State::in_warp) pause();
  return warp.result[lane];
}

}  // namespace emu
