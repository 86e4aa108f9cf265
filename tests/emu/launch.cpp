#include "emu/launch.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "emu/arithmetic.h"
#include "emu/faults.h"
#include "emu/global_memory.h"
#include "emu/runtime.h"
#include "emu/schedule.h"
#include "emu/settings.h"
#include "emu/shadow.h"
#include "emu/shared_memory.h"
#include "emu/symbols.h"
#include "emu/traffic.h"

namespace emu {
namespace {

bool fits(dim3 grid, dim3 block) {
  const auto threads = uint64_t(block.x) * block.y * block.z;
  return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
         threads >= 1 && threads <= kMaxThreads && block.z <= 64;
}

// Those of the grid's blocks that run.
std::vector<uint64_t> chosen(uint64_t blocks) {
  std::vector<uint64_t> all;
  if (settings.blocks.empty()) {
    all.resize(blocks);
    std::iota(all.begin(), all.end(), 0u);
  }
  for (const int64_t block : settings.blocks) {
    const uint64_t number = block < 0 ? blocks + uint64_t(block) : uint64_t(block);  // wraps far beyond the grid
    if (number < blocks && std::find(all.begin(), all.end(), number) == all.end()) all.push_back(number);
  }
  return all;
}

void run_blocks(const Body& body, int threads) {
  const std::vector<uint64_t> blocks = chosen(uint64_t(gridDim.x) * gridDim.y * gridDim.z);
  const std::vector<uint32_t>& places = order(Who::blocks, uint32_t(blocks.size()));
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    begin_shared_block();
    if (!run_block(body, blocks[places[i]], i) || faulted()) return;
    if (settings.count) count_block(threads);
  }
}

}  // namespace

cudaError_t launch_body(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                        const Body& body) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  if (const cudaError_t status = enter_on("cudaLaunchKernel", stream)) return status;
  if (shared_bytes > kMaxSharedBytes) return failed(cudaErrorInvalidValue);
  if (!fits(grid, block)) return failed(cudaErrorInvalidConfiguration);
  const DefaultArithmetic arithmetic;
  gridDim = grid;
  blockDim = block;
  begin_global_launch();
  begin_shared_launch(shared_bytes);
  if (settings.count) {
    begin_counting({name_of_kernel(kernel), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                    {}, {}, 0, 0});
  }
  const uint64_t barriers = progress.barriers;
  run_blocks(body, int(block.x * block.y * block.z));
  if (faulted()) throw std::runtime_error(take_faults(name_of_kernel(kernel)));
  if (settings.count) {
    uint64_t read, written;
    count_bytes(read, written);
    finish_counting(progress.barriers - barriers, read, written);
  }
  return cudaSuccess;
}

}  // namespace emu
