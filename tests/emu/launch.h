// Runs a kernel on a grid.
#pragma once

#include <cuda_runtime_api.h>

#include "emu/block.h"

namespace emu {

// What a GPU's launch would refuse gives its status; faults of the kernel are thrown as one std::runtime_error.
cudaError_t launch_body(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                        const Body&);

// `thread` is called once for each thread.
template <class Thread>
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   const Thread& thread) {
  const auto call = [](const void* state) { (*static_cast<const Thread*>(state))(); };
  return launch_body(kernel, grid, block, shared_bytes, stream, {call, &thread});
}

}  // namespace emu
