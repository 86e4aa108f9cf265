// What the host's allocator does, where the code depends on it.
#pragma once

#include <cstdint>

namespace transcast {

// Blocks of this size and more come from the kernel as fresh pages each time: the upper limit of glibc's dynamic mmap
// threshold on 64-bit systems.
constexpr int64_t kFreshBytes = 32 << 20;

}  // namespace transcast
