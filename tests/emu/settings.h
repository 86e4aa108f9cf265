// What a test chooses.
#pragma once

#include <cstdint>
#include <vector>

namespace emu {

struct Settings {
  uint8_t poison = 0xa5;     // shared memory of each block, workspaces and outputs hold it until they are written
  bool races = true;         // watch shared memory and global memory; without, only the results tell
  bool count = false;        // keep the traffic of each launch
  int multiprocessors = 4;   // few, so that kernels which loop over the grid do loop
  int l2_bytes = 1 << 20;    // small, so that some shapes of the suite pass it
  bool capturing = false;    // what the stream says when it is asked
  bool another_captures = false;  // another thread, on a stream of its own
  int stream = 0;            // the current one
  int device = 0;            // the current one
  // Each launch runs only these, negative ones counted from behind its last; empty: all. What the others would have
  // written is not poisoned, so that it takes no memory.
  std::vector<int64_t> blocks;
};
inline Settings settings;

}  // namespace emu
