#include "emu/runtime.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "emu/global_memory.h"
#include "emu/settings.h"

namespace emu {
namespace {

std::mutex of_calls;
std::map<std::string, uint64_t> counts;
std::map<std::string, int> failures;
cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
int told_multiprocessors[kDevices];  // what launchers, which ask a device once, have been told; 0: not asked

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
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not permitted while capturing"},
};

// What no thread may ask for while a stream captures, unless it says that it is no part of that.
cudaError_t enter_uncapturable(const char* function) {
  if (const cudaError_t status = enter(function)) return status;
  return forbidden_by_capture() ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
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

cudaError_t enter_on(const char* function, cudaStream_t used) {
  if (const cudaError_t status = enter(function)) return status;
  return used == stream() ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

bool forbidden_by_capture() {
  return (settings.capturing || settings.another_captures) && capture_mode != cudaStreamCaptureModeRelaxed;
}

void set_multiprocessors(int count) {
  const int told = told_multiprocessors[settings.device];
  if (told && told != count) {
    throw std::invalid_argument("device " + std::to_string(settings.device) + " has told launchers that it has " +
                                std::to_string(told) + " multiprocessors: they will not ask again");
  }
  settings.multiprocessors = count;
}

int arch_of(int device) {
  constexpr int kArchs[] = {90, 89, 100, 120};
  return device < 4 ? kArchs[device] : 90;
}

constexpr uintptr_t kFirstStream = 0x57ea0;
cudaStream_t stream() { return reinterpret_cast<cudaStream_t>(kFirstStream + uintptr_t(settings.stream)); }

cudaError_t failed(cudaError_t status) { return last_error = status; }

void fail_next(const std::string& function, int status) { failures[function] = status; }

const std::map<std::string, uint64_t>& calls() { return counts; }

cudaError_t kept_error() { return last_error; }

void reset_runtime() {
  counts.clear();
  failures.clear();
  last_error = cudaSuccess;
}

}  // namespace emu

using emu::enter;
using emu::enter_on;
using emu::enter_uncapturable;
using emu::failed;
using emu::settings;

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t status = enter_uncapturable("cudaMalloc")) return status;
  constexpr size_t kAlignment = 256;
  *memory = aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!*memory) return failed(cudaErrorMemoryAllocation);
  memset(*memory, settings.poison, bytes);
  emu::add_memory(*memory, bytes, true, emu::Lifetime::lasting);
  emu::watch_users(*memory, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t status = enter_on("cudaMemsetAsync", stream)) return status;
  if (bytes && !emu::may_touch(memory, bytes, true)) return failed(cudaErrorInvalidValue);
  memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t status = enter_uncapturable("cudaStreamSynchronize")) return status;
  return stream == emu::stream() ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  if (const cudaError_t status = enter_on("cudaStreamGetId", stream)) return status;
  *id = static_cast<unsigned long long>(settings.stream) + 1;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = settings.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return enter_on("cudaStreamIsCapturing", stream);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, emu::capture_mode);
  return enter("cudaThreadExchangeStreamCaptureMode");
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t status = enter("cudaDeviceGetAttribute")) return status;
  if (device < 0 || device >= emu::kDevices) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = emu::told_multiprocessors[device] = settings.multiprocessors;
      break;
    case cudaDevAttrL2CacheSize: *value = settings.l2_bytes; break;
    case cudaDevAttrComputeCapabilityMajor: *value = emu::arch_of(device) / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emu::arch_of(device) % 10; break;
    default: return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (const cudaError_t status = enter_uncapturable("cudaFuncGetAttributes")) return status;  // it loads code
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = emu::last_error;
  emu::last_error = cudaSuccess;
  return status;
}

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
