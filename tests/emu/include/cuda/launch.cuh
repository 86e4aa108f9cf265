// csrc/cuda/launch.cuh for the emulator: the same functions, and the launch runs here and now.
#pragma once

#include <cuda_runtime.h>

#include <tuple>

#include "cuda/error.h"
#include "emu/launch.h"
#include "emu/shared_memory.h"

namespace transcast::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  const auto thread = [&] { std::apply(kernel, values); };
  check(emu::launch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, thread),
        "cudaLaunchKernel");
}

template <class Smem>
Smem& shared(EMU_SITE) {
  static_assert(alignof(Smem) <= 16, "what the product aligns shared memory to");
  return *static_cast<Smem*>(emu::shared_struct(sizeof(Smem), {file, line}));
}

}  // namespace transcast::cuda
