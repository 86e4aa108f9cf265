// How kernels start and get their shared memory.
#pragma once

#include <cuda_runtime.h>

#include <tuple>

#include "cuda/error.h"

namespace transcast::cuda {

// Arguments are converted to the kernel's parameters, and a launch that fails throws.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  std::tuple<Parameters...> values(arguments...);
  void* pointers[sizeof...(Parameters)];
  std::apply([&](auto&... value) { size_t i = 0; ((pointers[i++] = &value), ...); }, values);
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream),
        "cudaLaunchKernel");
}

// The block's shared memory as the kernel's one struct; the launch states its size. lds and sts read and write it.
template <class Smem>
__device__ __forceinline__ Smem& shared() {
  static_assert(alignof(Smem) <= 16, "bytes is aligned to 16");
  extern __shared__ __align__(16) unsigned char bytes[];
  return *reinterpret_cast<Smem*>(bytes);
}

}  // namespace transcast::cuda
