// What the CUDA runtime says about this machine, without torch and without CUDA headers for the caller.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace transcast::cuda {

struct Device {
  std::string name;
  int capability_major;
  int capability_minor;
  int multiprocessors;
  std::size_t memory_bytes;
};

struct DeviceFacts {
  int compiled_with;        // nvcc, as CUDA writes versions: 13.0 is 13000
  int runtime_version;      // of the loaded libcudart; 0 if it does not answer
  int driver_version;       // newest CUDA that the driver serves; 0 without a driver
  std::string unavailable;  // why there are no devices, in the runtime's words; empty if there are some
  std::vector<Device> devices;
};

// Never throws and creates no context. Safe on a machine without a driver.
DeviceFacts device_facts();

}  // namespace transcast::cuda
