// Global memory as kernels may use it: what they may touch at all, and what of it more than one thread may touch.
//
// Within a launch a byte is either read through ldg, or stored once, or a matter of atomics. What another block has
// stored or changed may be read (ldcg, atomic_exchange) or stored over, and what it has read by ldcg may be stored over
// or exchanged, only after a handover: the other block's work, a barrier if another thread did it, fence(), an atomic;
// then here an atomic on the same word, fence(), a barrier if another thread goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "emu/site.h"

namespace emu {

// ---- What is there

enum class Lifetime { op, lasting };
void add_memory(const void* address, size_t bytes, bool writable, Lifetime);
void remove_memory(const void* address);
void forget_memory_of_op();
// Of memory that may be touched; none of other memory.
std::optional<Lifetime> lifetime_of(const void* address, size_t bytes, bool to_write);
// Whether the runtime and libraries may touch it, which then do write all of it.
bool may_touch(const void* address, size_t bytes, bool to_write);

// ---- Who uses lasting memory: launches of other streams and threads may run at the same time

void watch_users(const void* address, size_t bytes);  // of each word, from now on
// Whether a launch has used a word of it on another stream, or by another thread that has not ended. If not, it is this
// stream's and thread's now.
bool is_used_by_others(const void* address, size_t bytes);

// ---- What has been written of the memory that the running op has allocated

void add_unwritten(const void* address, size_t bytes);  // allocated now
void note_written(const void* address, size_t bytes);
bool is_written(const void* address, size_t bytes);  // or no memory of that kind

// ---- A launch

void begin_global_launch();

// ---- Accesses of the running thread. Those that fault on their address are not made; a load gives zeros then.

void load(void* value, const void* address, size_t size, bool ok, Site, const void* call);
void store(void* address, const void* value, size_t size, bool ok, Site, const void* call);
void load_coherent(void* value, const void* address, size_t size, Site, const void* call);

bool begin_atomic(uint32_t* address, bool overwrites, Site);  // whether it may be made

template <class Update>
uint32_t atomic(uint32_t* address, Site site, Update update) {
  if (!begin_atomic(address, false, site)) return 0;
  const uint32_t old = *address;
  *address = update(old);
  return old;
}

uint32_t atomic_exchange(uint32_t* address, uint32_t value, Site);

void fence();

}  // namespace emu
