// The running block's shared memory, and who touched which of its words.
#pragma once

#include <cstddef>

#include "emu/site.h"

namespace emu {

constexpr size_t kMaxSharedBytes = 48 << 10;  // what a block gets whose kernel has not asked for more, on any GPU

void begin_shared_launch(size_t bytes);
void begin_shared_block();  // poisoned, and untouched

// The kernel's struct. Its address is only a name: a direct access to it crashes, accesses go through the functions
// below.
void* shared_struct(size_t bytes, Site);

void load_shared(void* value, const void* field, size_t size, Site, const void* call);
void store_shared(void* field, const void* value, size_t size, Site, const void* call);

}  // namespace emu
