#include "cuda/device.h"

#include "cuda/error.h"

namespace transcast::cuda {

DeviceFacts device_facts() {
  DeviceFacts facts{CUDART_VERSION, 0, 0, {}, {}};
  (void)cudaRuntimeGetVersion(&facts.runtime_version);
  (void)cudaDriverGetVersion(&facts.driver_version);

  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int index = 0; error == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties;
    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) break;
    facts.devices.push_back({properties.name, properties.major, properties.minor,
                             properties.multiProcessorCount, properties.totalGlobalMem});
  }
  if (error != cudaSuccess) {
    facts.unavailable = described(error);
    // The runtime keeps the last error per thread: left there, torch's next check would report it as its own.
    (void)cudaGetLastError();
  } else if (count == 0) {
    facts.unavailable = "the driver reports no device";
  }
  return facts;
}

}  // namespace transcast::cuda
