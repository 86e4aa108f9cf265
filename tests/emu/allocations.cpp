// Which memory kernels may touch: the tensors of the op that runs, its workspaces, and what cudaMalloc gave. And what
// of it has been written, where the op has allocated it, and who uses it, where cudaMalloc gave it.
#include <algorithm>
#include <mutex>
#include <vector>

#include "emu/global_memory.h"
#include "emu/users.h"

namespace emu {
namespace {

struct Allocation {
  uintptr_t begin, end;
  bool writable;
};

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// Sorted by begin. Tensors of one op may overlap: each lookup tries all that begin at or before the address.
class Allocations {
 public:
  void add(const Allocation& added) {
    const auto place = std::upper_bound(all_.begin(), all_.end(), added,
                                        [](const Allocation& a, const Allocation& b) { return a.begin < b.begin; });
    if (place != all_.begin()) {
      Allocation& before = *(place - 1);
      if (before.begin == added.begin && before.end == added.end) {
        before.writable |= added.writable;
        return;
      }
    }
    all_.insert(place, added);
  }

  void remove(uintptr_t begin) {
    const auto there = [=](const Allocation& a) { return a.begin == begin; };
    all_.erase(std::remove_if(all_.begin(), all_.end(), there), all_.end());
  }

  void clear() { all_.clear(); }

  bool hold(uintptr_t begin, uintptr_t end, bool to_write) {
    const auto holds = [=](const Allocation& a) {
      return begin >= a.begin && end <= a.end && (a.writable || !to_write);
    };
    if (last_found_ < all_.size() && holds(all_[last_found_])) return true;
    const auto after = std::upper_bound(all_.begin(), all_.end(), begin,
                                        [](uintptr_t value, const Allocation& a) { return value < a.begin; });
    for (size_t i = size_t(after - all_.begin()); i-- > 0;) {
      if (!holds(all_[i])) continue;
      last_found_ = i;
      return true;
    }
    return false;
  }

 private:
  std::vector<Allocation> all_;
  size_t last_found_ = 0;
};

// One bit for each byte of what the op has allocated. An op that failed may have left some behind, freed since.
class Written {
 public:
  void add(uintptr_t begin, uintptr_t end) {
    const auto overlaps = [=](const Range& r) { return r.begin < end && begin < r.end; };
    ranges_.erase(std::remove_if(ranges_.begin(), ranges_.end(), overlaps), ranges_.end());
    ranges_.insert(behind(begin), {begin, end, std::vector<uint64_t>((end - 1) / kGroup - begin / kGroup + 1)});
  }

  void clear() { ranges_.clear(); }

  // visit(group, mask of the bytes in it) until it returns false. Accesses do not cross the end of what is allocated.
  template <class Visit>
  bool each_group(uintptr_t begin, uintptr_t end, Visit visit) {
    const auto next = behind(begin);
    if (next == ranges_.begin() || (next - 1)->end <= begin) return true;
    Range& range = *(next - 1);
    for (uintptr_t stop; begin < std::min(end, range.end); begin = stop) {
      stop = std::min({end, range.end, (begin / kGroup + 1) * kGroup});
      const uint64_t mask = ~uint64_t{0} >> (kGroup - (stop - begin)) << begin % kGroup;
      if (!visit(range.written[begin / kGroup - range.begin / kGroup], mask)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGroup = 64;
  struct Range {
    uintptr_t begin, end;
    std::vector<uint64_t> written;
  };

  std::vector<Range>::iterator behind(uintptr_t address) {
    return std::upper_bound(ranges_.begin(), ranges_.end(), address,
                            [](uintptr_t value, const Range& r) { return value < r.begin; });
  }

  std::vector<Range> ranges_;  // sorted
};

// An op and its kernels run on one thread, and its memory is nothing to ops of other threads.
thread_local Allocations of_op;
thread_local Written written;
Allocations lasting, watched;
Users users;  // of the watched
std::mutex of_lasting;

}  // namespace

void add_memory(const void* address, size_t bytes, bool writable, Lifetime lifetime) {
  const Allocation added{number_of(address), number_of(address) + bytes, writable};
  if (lifetime == Lifetime::op) return of_op.add(added);
  const std::lock_guard<std::mutex> lock(of_lasting);
  lasting.add(added);
}

void remove_memory(const void* address) {
  const std::lock_guard<std::mutex> lock(of_lasting);
  lasting.remove(number_of(address));
}

void forget_memory_of_op() {
  of_op.clear();
  written.clear();
}

void add_unwritten(const void* address, size_t bytes) {
  if (bytes) written.add(number_of(address), number_of(address) + bytes);
}

void note_written(const void* address, size_t bytes) {
  const uintptr_t begin = number_of(address);
  written.each_group(begin, begin + bytes, [](uint64_t& group, uint64_t mask) { group |= mask; return true; });
}

bool is_written(const void* address, size_t bytes) {
  const uintptr_t begin = number_of(address);
  return written.each_group(begin, begin + bytes, [](uint64_t& group, uint64_t mask) { return !(mask & ~group); });
}

std::optional<Lifetime> lifetime_of(const void* address, size_t bytes, bool to_write) {
  const uintptr_t begin = number_of(address), end = begin + bytes;
  if (of_op.hold(begin, end, to_write)) return Lifetime::op;
  const std::lock_guard<std::mutex> lock(of_lasting);
  if (lasting.hold(begin, end, to_write)) return Lifetime::lasting;
  return std::nullopt;
}

void watch_users(const void* address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(of_lasting);
  watched.add({number_of(address), number_of(address) + bytes, true});
}

bool is_used_by_others(const void* address, size_t bytes) {
  const uintptr_t begin = number_of(address), end = begin + bytes;
  const std::lock_guard<std::mutex> lock(of_lasting);
  return watched.hold(begin, end, false) && !users.take(begin, end);
}

bool may_touch(const void* address, size_t bytes, bool to_write) {
  const bool allowed = lifetime_of(address, bytes, to_write).has_value();
  if (allowed && to_write) note_written(address, bytes);
  return allowed;
}

}  // namespace emu
