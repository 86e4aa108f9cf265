#include "emu/global_memory.h"

#include <cstring>
#include <string>

#include "emu/block.h"
#include "emu/faults.h"
#include "emu/handover.h"
#include "emu/settings.h"
#include "emu/shadow.h"
#include "emu/traffic.h"

namespace emu {
namespace {

bool tracks() { return settings.races || settings.count; }

std::string describe(const Event& event) {
  const std::string who = "thread " + std::to_string(event.thread);
  if (event.sequence == sequence()) return who + " of this block";
  return who + " of the " + std::to_string(event.sequence + 1) + "th block that ran";
}

bool check_address(const void* place, size_t size, bool to_write, Site site) {
  const std::optional<Lifetime> lifetime = lifetime_of(place, size, to_write);
  if (!lifetime) {
    const bool known = lifetime_of(place, size, false).has_value();
    fault(site, known ? "store to a read-only argument" : "global access outside of every tensor and workspace",
          size, " bytes at ", place);
    return false;
  }
  if (reinterpret_cast<uintptr_t>(place) % size != 0) {
    fault(site, "misaligned global access", size, " bytes at ", place);
    return false;
  }
  if (settings.races && lifetime == Lifetime::lasting && is_used_by_others(place, size)) {
    fault(site, "memory of another stream or thread of the host", size, " bytes at ", place);
  }
  return true;
}

bool check_written(const void* place, size_t size, Site site) {
  if (!settings.races || is_written(place, size)) return true;
  fault(site, "global memory read before anything has written it", size, " bytes at ", place);
  return false;
}

template <class Visit>
void each_word(uintptr_t address, size_t size, Visit visit) {
  for (uintptr_t byte = address; byte < address + size; byte += kWordBytes) visit(coherent_word(byte));
}

void check_load(const Bytes& bytes, uintptr_t address, size_t size, Site site) {
  if (bytes.written()) {
    fault(site, "plain load of what this launch stores", "stored by ", describe(bytes.writer()));
  }
  if (!bytes.coherent()) return;
  each_word(address, size, [&](CoherentWord& word) {
    word.read_plainly = true;
    if (!word.atomics.empty()) fault(site, "plain load of what this launch changes by atomics");
  });
}

// What a block does with words that others may have changed or read: load_coherent, atomics, and stores over them.
void check_handover(const Event& event, const char* kind, Site site, const char* done = "changed") {
  if (const char* missing = missing_between(event)) {
    fault(site, kind, done, " by ", describe(event), "; missing: ", missing);
  }
}

void check_atomics(const CoherentWord& word, const char* kind, Site site) {
  for (const Atomic& atomic : word.atomics) check_handover(atomic.event, kind, site);
}

uint32_t bytes_in_word(uintptr_t address, size_t size) {
  return size >= kWordBytes ? 0xf : ((1u << size) - 1) << address % kWordBytes;
}

void note_reading(CoherentWord& word, uint32_t bytes) {
  const Reading now{this_event(), bytes};
  if (!word.readings.empty()) {
    Reading& last = word.readings.back();
    const bool same_thread = last.event.sequence == now.event.sequence && last.event.thread == now.event.thread;
    if (same_thread && last.bytes == bytes) {
      last = now;  // what comes after this one comes after the one before
      return;
    }
  }
  word.readings.push_back(now);
}

void check_readings(const CoherentWord& word, uint32_t bytes, const char* kind, Site site) {
  for (const Reading& reading : word.readings) {
    if (reading.bytes & bytes) check_handover(reading.event, kind, site, "read");
  }
}

constexpr const char* kStoreAfterLoad = "store to what this launch has read by a plain load";

void check_store(const Bytes& bytes, uintptr_t address, size_t size, Site site) {
  if (bytes.written()) fault(site, "byte stored twice", "before by ", describe(bytes.writer()));
  if (bytes.read() && !bytes.coherent()) fault(site, kStoreAfterLoad);
  if (!bytes.coherent()) return;
  each_word(address, size, [&](CoherentWord& word) {
    if (word.read_plainly) fault(site, kStoreAfterLoad);
    check_readings(word, bytes_in_word(address, size), "store over a read that nothing orders before it", site);
    check_atomics(word, "store over other blocks' atomics that nothing orders before it", site);
  });
}

void track_coherent_load(uintptr_t address, size_t size, Site site) {
  constexpr const char* kind = "ldcg of what nothing orders before it";
  Bytes bytes(address, size);
  if (settings.races && bytes.written()) check_handover(bytes.writer(), kind, site);
  each_word(address, size, [&](CoherentWord& word) {
    if (!bytes.coherent() && bytes.read()) word.read_plainly = true;
    if (!settings.races) return;
    check_atomics(word, kind, site);
    note_reading(word, bytes_in_word(address, size));
  });
  bytes.note_read();
  bytes.note_coherent();
}

// Lanes that take no part in a warp's instruction count it, too: their next one is not the others' first.
void note_inactive(const void* call, Access access) {
  if (settings.count) note_global_access(call, access, nullptr, 0);
}

}  // namespace

void begin_global_launch() {
  begin_shadow();
  begin_handovers();
}

void load(void* value, const void* place, size_t size, bool ok, Site site, const void* call) {
  if (!ok) return note_inactive(call, Access::read);
  if (!check_address(place, size, false, site) || !check_written(place, size, site)) return;
  if (tracks()) {
    const auto address = reinterpret_cast<uintptr_t>(place);
    Bytes bytes(address, size);
    if (settings.races) check_load(bytes, address, size, site);
    bytes.note_read();
  }
  if (settings.count) note_global_access(call, Access::read, place, size);
  memcpy(value, place, size);
}

void store(void* place, const void* value, size_t size, bool ok, Site site, const void* call) {
  if (!ok) return note_inactive(call, Access::write);
  if (!check_address(place, size, true, site)) return;
  note_written(place, size);
  if (tracks()) {
    const auto address = reinterpret_cast<uintptr_t>(place);
    Bytes bytes(address, size);
    if (settings.races) check_store(bytes, address, size, site);
    bytes.note_written(this_event());
  }
  if (settings.count) note_global_access(call, Access::write, place, size);
  memcpy(place, value, size);
}

void load_coherent(void* value, const void* place, size_t size, Site site, const void* call) {
  if (!check_address(place, size, false, site) || !check_written(place, size, site)) return;
  if (tracks()) track_coherent_load(reinterpret_cast<uintptr_t>(place), size, site);
  if (settings.count) note_global_access(call, Access::read, place, size);
  memcpy(value, place, size);
}

bool begin_atomic(uint32_t* place, bool overwrites, Site site) {
  if (!check_address(place, sizeof *place, true, site) || !check_written(place, sizeof *place, site)) return false;
  if (settings.count) note_atomic();
  if (!settings.races) return true;
  const auto address = reinterpret_cast<uintptr_t>(place);
  Bytes bytes(address, sizeof *place);
  CoherentWord& word = coherent_word(address);
  if (bytes.read() && (!bytes.coherent() || word.read_plainly)) {
    fault(site, "atomic on what this launch has read by a plain load");
  }
  if (bytes.written()) check_handover(bytes.writer(), "atomic on what nothing orders before it", site);
  if (overwrites) {
    check_atomics(word, "exchange over atomics that nothing orders before it", site);
    check_readings(word, bytes_in_word(address, sizeof *place), "exchange over a read that nothing orders before it",
                   site);
  }
  note_atomic_on(word.atomics);
  bytes.note_coherent();
  return true;
}

uint32_t atomic_exchange(uint32_t* place, uint32_t value, Site site) {
  if (!begin_atomic(place, true, site)) return 0;
  const uint32_t old = *place;
  *place = value;
  return old;
}

void fence() { note_fence(); }

}  // namespace emu
