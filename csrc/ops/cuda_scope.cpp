// The device, the stream and the allocator of torch, for the CUDA backend.
#define USE_CUDA  // torch's shim declares its CUDA functions only then
#include <memory>
#include <type_traits>

#include "ops/tensors.h"

namespace transcast::ops {
namespace {

void* allocate(int64_t bytes, void* state) {
  void* memory;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t(bytes), &memory));
  static_cast<std::vector<void*>*>(state)->push_back(memory);
  return memory;
}

struct DeleteGuard {
  void operator()(CUDAGuardHandle guard) const { aoti_torch_delete_cuda_guard(guard); }
};
using Guard = std::unique_ptr<std::remove_pointer_t<CUDAGuardHandle>, DeleteGuard>;

}  // namespace

Scope::Scope(const Tensor& like) {
  int32_t device;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device));
  CUDAGuardHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_guard(device, &handle));
  Guard guard(handle);  // the destructor does not run if what follows throws
  void* stream;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  context_ = {device, stream, allocate, &workspaces_};
  guard_ = guard.release();
}

Scope::~Scope() {
  // Freed while the work that uses them is still queued: the allocator hands them out again on this stream only.
  for (void* memory : workspaces_) aoti_torch_cuda_caching_allocator_raw_delete(memory);
  const Guard guard(static_cast<CUDAGuardHandle>(guard_));
}

}  // namespace transcast::ops
