#include "cuda/state.h"

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/capture.h"
#include "cuda/finish.cuh"

namespace transcast::cuda {
namespace {

__global__ void probe_kernel() {}

struct DeviceState {
  std::once_flag asked;
  DeviceFigures figures;
};

DeviceState& state_of(const CudaContext& context) {
  static std::array<DeviceState, kMaxDevices> devices;
  return devices.at(size_t(context.device));
}

int attribute(cudaDeviceAttr which, int device) {
  int value;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

int arch_of(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  return 10 * major + attribute(cudaDevAttrComputeCapabilityMinor, device);
}

[[noreturn]] void refuse_device(int device) {
  const int arch = arch_of(device);
  const std::string capability = std::to_string(arch / 10) + "." + std::to_string(arch % 10);
  throw std::runtime_error("transcast: cuda:" + std::to_string(device) + " has compute capability " + capability +
                           ", for which this build has no code; it was built for " TRANSCAST_CUDA_ARCHS
                           ". FP8 needs 8.9 or later, and TORCH_CUDA_ARCH_LIST chooses what is built");
}

void ask(DeviceState& state, int device) {
  const OutsideOfCaptures now;  // the first call that loads code
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    refuse_device(device);
  }
  check(status, "cudaFuncGetAttributes");
  state.figures = {arch_of(device), attribute(cudaDevAttrMultiProcessorCount, device),
                   attribute(cudaDevAttrL2CacheSize, device)};
}

// ---- Slots of eager ops.
//
// An op needs its slot from its first launch until its last one has run. Launches of one thread on one stream run in
// the order in which they were issued, so a slot that only they use is free again whenever one of their ops begins:
// each pair of thread and stream has one. Not each stream: another thread may issue launches of its op between two of
// this one's. Nor do ops take turns in a ring: an op may wait for other streams for any length of time, and one that
// got its slot meanwhile would damage both, and all that come after them. Ids of streams are never given out again, so
// that each new stream of a program costs a slot of 32 bytes and an entry of a map for good.

struct StreamKey {
  int device;
  unsigned long long stream;  // cudaStreamGetId: unlike a handle it is not given out again
  bool operator<(const StreamKey& other) const {
    return device != other.device ? device < other.device : stream < other.stream;
  }
};

constexpr int64_t kChunkSlots = 4096;

class SlotPool {
 public:
  Slot* take(const CudaContext& context, const StreamKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::vector<Slot*>& left = left_[key]; !left.empty()) {
      Slot* slot = left.back();
      left.pop_back();
      return slot;
    }
    Chunk& chunk = chunks_.at(size_t(context.device));
    if (chunk.next == chunk.end) {
      Slot* slots = allocate();
      chunk = {slots, slots + kChunkSlots};
    }
    // Zeroed in the order of the stream that will use it: nothing waits. A slot counts as taken only after that.
    check(cudaMemsetAsync(chunk.next, 0, sizeof(Slot), stream_of(context)), "cudaMemsetAsync");
    return chunk.next++;
  }

  // By a thread that ends. Whoever takes the slot next issues its launches behind that thread's, on the same stream.
  void give_back(const StreamKey& key, Slot* slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_[key].push_back(slot);
  }

 private:
  struct Chunk {
    Slot *next, *end;
  };

  static Slot* allocate() {
    const OutsideOfCaptures now;
    void* slots = nullptr;
    check(cudaMalloc(&slots, kChunkSlots * sizeof(Slot)), "cudaMalloc");
    return static_cast<Slot*>(slots);
  }

  std::mutex mutex_;
  std::map<StreamKey, std::vector<Slot*>> left_;
  std::array<Chunk, kMaxDevices> chunks_{};
};

// Never destroyed: threads may end after static objects do, and then give their slots back.
SlotPool& pool() {
  static SlotPool& pool = *new SlotPool;
  return pool;
}

class SlotsOfThread {
 public:
  ~SlotsOfThread() {
    for (const auto& [key, slot] : slots_) pool().give_back(key, slot);
  }

  Slot* of_stream(const CudaContext& context) {
    StreamKey key{context.device, 0};
    check(cudaStreamGetId(stream_of(context), &key.stream), "cudaStreamGetId");
    const auto known = slots_.find(key);
    if (known != slots_.end()) return known->second;
    Slot* slot = pool().take(context, key);
    slots_.emplace(key, slot);
    return slot;
  }

 private:
  std::map<StreamKey, Slot*> slots_;
};

}  // namespace

const DeviceFigures& figures(const CudaContext& context) {
  DeviceState& state = state_of(context);
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
  thread_local SlotsOfThread slots;
  return slots.of_stream(context);
}

}  // namespace transcast::cuda
