// CUDA runtime calls that fail throw: the call, the status by name, and the runtime's words for it.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace transcast::cuda {

inline std::string described(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // left there, torch's next check would report it as its own
  throw std::runtime_error(std::string("transcast: ") + call + " failed with " + described(status));
}

}  // namespace transcast::cuda
