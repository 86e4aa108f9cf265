#include "cuda/state.h"

#include <array>
#include <atomic>
#include <mutex>

#include "cuda/error.h"
#include "cuda/finish.cuh"

namespace transcast::cuda {
namespace {

// Two ops meet in one slot only if this many others were started while the first one was running: a launch takes
// microseconds to issue and a kernel of this library milliseconds at most.
constexpr uint32_t kSlots = 4096;

__global__ void probe_kernel() {}

struct Device {
  std::once_flag asked, allocated;
  DeviceFigures figures;
  Slot* ring;
  std::atomic<uint32_t> next{0};
};

Device& device_of(const CudaContext& context) {
  static std::array<Device, kMaxDevices> devices;
  return devices.at(size_t(context.device));
}

int attribute(cudaDeviceAttr which, int device) {
  int value;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

int arch_of(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) + attribute(cudaDevAttrComputeCapabilityMinor, device);
}

void ask(Device& state, int device) {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    const int arch = arch_of(device);
    throw std::runtime_error("transcast: this build has no code for compute capability " + std::to_string(arch / 10) + "." +
                             std::to_string(arch % 10) + " of cuda:" + std::to_string(device) + ", only for " TRANSCAST_CUDA_ARCHS
                             "; FP8 needs 8.9 or later, and TORCH_CUDA_ARCH_LIST chooses what is built");
  }
  check(status, "cudaFuncGetAttributes");
  state.figures = {arch_of(device), attribute(cudaDevAttrMultiProcessorCount, device),
                   attribute(cudaDevAttrL2CacheSize, device)};
}

// Waits for the zeroes once, because every stream of the device will use the ring. cudaMalloc is allowed while another
// thread captures a graph, if this thread says that it is no part of it.
void allocate(Device& state, const CudaContext& context) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&state.ring), kSlots * sizeof(Slot));
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  check(status, "cudaMalloc");
  check(cudaMemsetAsync(state.ring, 0, kSlots * sizeof(Slot), stream_of(context)), "cudaMemsetAsync");
  check(cudaStreamSynchronize(stream_of(context)), "cudaStreamSynchronize");
}

}  // namespace

const DeviceFigures& figures(const CudaContext& context) {
  Device& state = device_of(context);
  std::call_once(state.asked, ask, std::ref(state), context.device);
  return state.figures;
}

Slot* take_slot(const CudaContext& context) {
  cudaStreamCaptureStatus status;
  check(cudaStreamIsCapturing(stream_of(context), &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) {
    void* slot = context.allocate(sizeof(Slot), context.state);
    check(cudaMemsetAsync(slot, 0, sizeof(Slot), stream_of(context)), "cudaMemsetAsync");
    return static_cast<Slot*>(slot);
  }
  Device& state = device_of(context);
  std::call_once(state.allocated, allocate, std::ref(state), std::cref(context));
  return state.ring + state.next.fetch_add(1, std::memory_order_relaxed) % kSlots;
}

}  // namespace transcast::cuda
