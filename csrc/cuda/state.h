// What is kept per device: its figures, and the slots in which blocks of a launch meet.
#pragma once

#include <cuda_runtime_api.h>

#include "backend.h"

namespace transcast::cuda {

constexpr int kMaxDevices = 128;

struct Slot;

struct DeviceFigures {
  int arch;  // 89 for compute capability 8.9
  int multiprocessors;
  int64_t l2_bytes;
};

// Throws if this build has no code for the device. Asked once per device.
const DeviceFigures& figures(const CudaContext&);

// A zeroed slot for the launches of one op, which leave it zeroed: the one that this thread has for this stream. An op
// that is being captured gets memory of its graph, zeroed by a node of the graph, because replays may run on any
// stream.
Slot* take_slot(const CudaContext&);

inline cudaStream_t stream_of(const CudaContext& context) { return static_cast<cudaStream_t>(context.stream); }

}  // namespace transcast::cuda
