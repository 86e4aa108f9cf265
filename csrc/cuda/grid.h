// What launchers ask before they choose a kernel and its grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/state.h"

namespace transcast::cuda {

// Tiles as a number of blocks. Only an expanded matrix, whose rows share their memory, can have more than a launch
// takes.
inline uint32_t block_count(int64_t tiles) {
  if (tiles <= INT32_MAX) return uint32_t(tiles);
  throw std::invalid_argument("transcast: x may take at most 2147483647 blocks of a CUDA launch, this one takes " +
                              std::to_string(tiles) + "; split it");
}

// For kernels whose blocks take turns: a few for each multiprocessor, one at least. Not all of them are resident at once
// (three to eight per multiprocessor, by their registers), so that those which wait even out the end; more would only
// add to what every block does once. Not tuned on hardware.
inline uint32_t blocks_in_turns(const CudaContext& context, int64_t wanted) {
  constexpr int64_t kPerMultiprocessor = 8;
  return uint32_t(std::clamp<int64_t>(wanted, 1, kPerMultiprocessor * figures(context).multiprocessors));
}

inline bool at_whole_chunk(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Every row begins at a whole chunk.
inline bool in_whole_chunks(const void* data, int64_t rows, int64_t row_bytes) {
  return at_whole_chunk(data) && (rows <= 1 || row_bytes % 16 == 0);
}

}  // namespace transcast::cuda
