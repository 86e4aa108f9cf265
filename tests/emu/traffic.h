// What a launch would move on a GPU, from the addresses of each warp's accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emu {

enum class Access : uint8_t { read, write };

// One kind of access to global memory, over a launch.
struct GlobalTraffic {
  uint64_t sectors;                   // 32 bytes each: distinct ones within each warp instruction, summed
  uint64_t uniform;                   // those of them that a whole warp reads at one address: scalars
  uint64_t bytes;                     // distinct ones within the launch
  std::map<size_t, uint64_t> widths;  // bytes per lane -> warp instructions
  uintptr_t lowest, first, last;      // addresses of whole chunks of 16 bytes, in the order of the accesses
};

struct SharedTraffic {
  uint64_t wavefronts, minimum;  // as it is, and if no two lanes met in a bank
};

struct Launch {
  std::string kernel;
  uint32_t grid[3], block[3];
  size_t shared_bytes;
  GlobalTraffic global[2];  // by Access
  SharedTraffic shared[2];
  uint64_t barriers, atomics;
};

// While settings.count is set. `call` tells one access of the kernel from another; size 0: the lane is there, inactive.
void note_global_access(const void* call, Access, const void* address, size_t size);
void note_shared_access(const void* call, Access, size_t offset, size_t size);
void note_atomic();

void begin_counting(const Launch&);  // what is known before
void count_block(int threads);       // at the end of each block
void finish_counting(uint64_t barriers, uint64_t bytes_read, uint64_t bytes_written);

extern std::vector<Launch> launches;

}  // namespace emu
