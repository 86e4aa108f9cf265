#include "emu/runtime.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "emu/global_memory.h"
#include "emu/settings.h"

namespace emu {
namespace {

std::mutex of_calls;
std::map<std::string, uint64_t> counts;
std::map<std::string, int> failures;
cudaError_t last_error = cudaSuccess;
cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

constexpr struct {
  cudaError_t status;
  const char *name, *text;
} kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not permitted while capturing"},
};

// What a stream must not be asked while it captures.
cudaError_t enter_uncapturable(const char* function) {
  if (const cudaError_t status = enter(function)) return status;
  return forbidden_by_capture() ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t fill(const char* function, void* memory, int value, size_t bytes) {
  if (const cudaError_t status = enter(function)) return status;
  if (bytes && !may_touch(memory, bytes, true)) return failed(cudaErrorInvalidValue);
  memset(memory, value, bytes);
  return cudaSuccess;
}

}  // namespace

int enter_library(const char* function) {
  const std::lock_guard<std::mutex> lock(of_calls);
  ++counts[function];
  const auto wanted = failures.find(function);
  if (wanted == failures.end()) return 0;
  const int status = wanted->second;
  failures.erase(wanted);
  return status;
}

cudaError_t enter(const char* function) {
  const auto status = cudaError_t(enter_library(function));
  return status == cudaSuccess ? status : failed(status);
}

bool forbidden_by_capture() { return settings.capturing && capture_mode != cudaStreamCaptureModeRelaxed; }

int arch_of(int device) {
  constexpr int kArchs[kDevices] = {90, 89, 100, 120, 90, 90, 90, 90};
  return kArchs[device];
}

cudaStream_t stream() { return reinterpret_cast<cudaStream_t>(uintptr_t{0x57ea0}); }

cudaError_t failed(cudaError_t status) { return last_error = status; }

void fail_next(const std::string& function, int status) { failures[function] = status; }

const std::map<std::string, uint64_t>& calls() { return counts; }

void reset_runtime() {
  counts.clear();
  failures.clear();
  last_error = cudaSuccess;
}

}  // namespace emu

using emu::enter;
using emu::enter_uncapturable;
using emu::failed;
using emu::settings;

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = settings.device;
  return enter("cudaGetDevice");
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t status = enter_uncapturable("cudaMalloc")) return status;
  constexpr size_t kAlignment = 256;
  *memory = aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!*memory) return failed(cudaErrorMemoryAllocation);
  memset(*memory, settings.poison, bytes);
  emu::add_memory(*memory, bytes, true, emu::Lifetime::lasting);
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (const cudaError_t status = enter_uncapturable("cudaFree")) return status;
  emu::remove_memory(memory);
  free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (settings.capturing) return enter_uncapturable("cudaMemset");
  return emu::fill("cudaMemset", memory, value, bytes);
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  return emu::fill("cudaMemsetAsync", memory, value, bytes);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (const cudaError_t status = enter("cudaMemcpyAsync")) return status;
  memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return enter_uncapturable("cudaStreamSynchronize"); }

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = settings.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return enter("cudaStreamIsCapturing");
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, emu::capture_mode);
  return enter("cudaThreadExchangeStreamCaptureMode");
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t status = enter("cudaDeviceGetAttribute")) return status;
  if (device < 0 || device >= emu::kDevices) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = settings.multiprocessors; break;
    case cudaDevAttrL2CacheSize: *value = settings.l2_bytes; break;
    case cudaDevAttrComputeCapabilityMajor: *value = emu::arch_of(device) / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emu::arch_of(device) % 10; break;
    default: return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (const cudaError_t status = enter("cudaFuncGetAttributes")) return status;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = emu::last_error;
  emu::last_error = cudaSuccess;
  return status;
}

cudaError_t cudaPeekAtLastError() { return emu::last_error; }

const char* cudaGetErrorName(cudaError_t status) {
  for (const auto& error : emu::kErrors) {
    if (error.status == status) return error.name;
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t status) {
  for (const auto& error : emu::kErrors) {
    if (error.status == status) return error.text;
  }
  return "an error without words here";
}

}  // extern "C"
