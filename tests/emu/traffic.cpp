#include "emu/traffic.h"

#include <algorithm>

#include "emu/block.h"

namespace emu {

std::vector<Launch> launches;

namespace {

struct Entry {
  const void* call;
  uint32_t turn;  // how often the lane had been there before
  bool shared;
  Access access;
  uint8_t size, lane;
  uintptr_t address;
};

std::vector<Entry> entries[kMaxThreads];  // of the block
Launch current;

// Numbers the lane's visits of each call.
void number_turns(std::vector<Entry>& lane) {
  std::stable_sort(lane.begin(), lane.end(), [](const Entry& a, const Entry& b) { return a.call < b.call; });
  for (size_t i = 1; i < lane.size(); ++i) lane[i].turn = lane[i].call == lane[i - 1].call ? lane[i - 1].turn + 1 : 0;
}

size_t distinct(std::vector<uintptr_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values.size();
}

void count_global(const Entry* first, const Entry* last) {
  std::vector<uintptr_t> sectors;
  for (const Entry* entry = first; entry != last; ++entry) sectors.push_back(entry->address / 32);
  GlobalTraffic& traffic = current.global[int(first->access)];
  traffic.sectors += distinct(sectors);
  const auto there = [=](const Entry& entry) { return entry.address == first->address; };
  if (last - first == kWarp && std::all_of(first, last, there)) ++traffic.uniform;
  ++traffic.widths[first->size];
}

// Lanes that are served together: all for up to 4 bytes each, half a warp for 8, a quarter for 16.
void count_shared(const Entry* first, const Entry* last) {
  const int together = first->size <= 4 ? 32 : first->size == 8 ? 16 : 8;
  SharedTraffic& traffic = current.shared[int(first->access)];
  while (first != last) {
    const int group = first->lane / together;
    std::vector<uintptr_t> words;
    for (; first != last && first->lane / together == group; ++first) {
      for (int byte = 0; byte < first->size; byte += 4) words.push_back((first->address + byte) / 4);
    }
    traffic.minimum += (distinct(words) + 31) / 32;
    uint64_t in_bank[32] = {};
    for (uintptr_t word : words) ++in_bank[word % 32];
    traffic.wavefronts += *std::max_element(in_bank, in_bank + 32);
  }
}

void count_warp(std::vector<Entry>* lanes, int count) {
  std::vector<Entry> all;
  for (int lane = 0; lane < count; ++lane) {
    number_turns(lanes[lane]);
    all.insert(all.end(), lanes[lane].begin(), lanes[lane].end());
    lanes[lane].clear();
  }
  all.erase(std::remove_if(all.begin(), all.end(), [](const Entry& e) { return e.size == 0; }), all.end());
  // Stable: the lanes of one instruction stay in order.
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
    return a.call != b.call ? a.call < b.call : a.turn < b.turn;
  });
  const Entry* const end = all.data() + all.size();
  for (const Entry* first = all.data(); first != end;) {
    const Entry* last = first;
    while (last != end && last->call == first->call && last->turn == first->turn) ++last;
    first->shared ? count_shared(first, last) : count_global(first, last);
    first = last;
  }
}

void note_order(GlobalTraffic& traffic, uintptr_t address) {
  if (!traffic.last) traffic.lowest = traffic.first = address;
  traffic.lowest = std::min(traffic.lowest, address);
  traffic.last = address;
}

}  // namespace

void note_global_access(const void* call, Access access, const void* address, size_t size) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (size == 16) note_order(current.global[int(access)], number);
  entries[running_thread()].push_back({call, 0, false, access, uint8_t(size), uint8_t(lane()), number});
}

void note_shared_access(const void* call, Access access, size_t offset, size_t size) {
  entries[running_thread()].push_back({call, 0, true, access, uint8_t(size), uint8_t(lane()), offset});
}

void note_atomic() { ++current.atomics; }

void begin_counting(const Launch& launch) {
  current = launch;
  for (auto& thread : entries) thread.clear();
}

void count_block(int threads) {
  for (int warp = 0; warp < threads; warp += kWarp) count_warp(entries + warp, std::min(kWarp, threads - warp));
}

void finish_counting(uint64_t barriers, uint64_t bytes_read, uint64_t bytes_written) {
  current.barriers = barriers;
  current.global[int(Access::read)].bytes = bytes_read;
  current.global[int(Access::write)].bytes = bytes_written;
  launches.push_back(current);
}

}  // namespace emu
