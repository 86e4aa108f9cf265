// The stand-in for the CUDA runtime: the functions that launchers call, with failures on demand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>

namespace emu {

// To be called first by each function: counts the call; returns what the test wants it to fail with.
cudaError_t enter(const char* function);

// And fails if the stream is not the current one: work on any other is not ordered after the op's.
cudaError_t enter_on(const char* function, cudaStream_t);

// The same for a library beside the runtime, with its own statuses.
int enter_library(const char* function);

// Whether a stream of any thread captures, and this thread has not said that it is no part of it.
bool forbidden_by_capture();

constexpr int kDevices = 17;
int arch_of(int device);  // 89 for compute capability 8.9
cudaStream_t stream();    // the current one
void set_multiprocessors(int);  // of the current device; throws if that has told another number

// Leaves the status where cudaGetLastError finds it, and returns it.
cudaError_t failed(cudaError_t);

void fail_next(const std::string& function, int status);
cudaError_t kept_error();  // what cudaGetLastError would give
const std::map<std::string, uint64_t>& calls();
void reset_runtime();  // calls, failures to come, the last error

}  // namespace emu
