// What the emulated CUDA backend gets from torch: the same as on a GPU, on the CPU. Also tells the emulator which
// memory an op may touch, and poisons what torch allocates for it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "emu/global_memory.h"
#include "emu/runtime.h"
#include "emu/settings.h"
#include "ops/tensors.h"

namespace {

// Of what an op has just allocated. A sparse launch does not write most of it, which is left to take no memory.
void poison(void* memory, size_t bytes) {
  if (bytes == 0 || !emu::settings.blocks.empty()) return;
  memset(memory, emu::settings.poison, bytes);
  emu::add_unwritten(memory, bytes);
}

}  // namespace

namespace transcast::ops {
namespace {

void* allocate(int64_t bytes, void* state) {
  if (emu::enter_library("workspace")) throw std::bad_alloc();
  constexpr int64_t kAlignment = 512;  // as torch's CUDA allocator
  void* memory = aligned_alloc(kAlignment, size_t(round_up(std::max<int64_t>(bytes, 1), kAlignment)));
  if (!memory) throw std::bad_alloc();
  static_cast<std::vector<void*>*>(state)->push_back(memory);
  emu::add_memory(memory, size_t(bytes), true, emu::Lifetime::op);
  poison(memory, size_t(bytes));
  return memory;
}

}  // namespace

Scope::Scope(const Tensor&) : context_{emu::settings.device, emu::stream(), allocate, &workspaces_} {}

Scope::~Scope() {
  emu::forget_memory_of_op();
  for (void* memory : workspaces_) free(memory);
}

}  // namespace transcast::ops

namespace {

// From a tensor's first element to behind its last.
size_t extent(AtenTensorHandle tensor) {
  int64_t dims, *sizes, *strides;
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &dims));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &sizes));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &strides));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  int64_t elements = 1;
  for (int64_t d = 0; d < dims; ++d) {
    if (sizes[d] == 0) return 0;
    elements += (sizes[d] - 1) * strides[d];
  }
  return size_t(elements) * aoti_torch_dtype_element_size(dtype);
}

void add_tensor(AtenTensorHandle tensor, const void* data, bool writable) {
  emu::add_memory(data, extent(tensor), writable, emu::Lifetime::op);
}

}  // namespace

// The linker leads the ops' calls of X to __wrap_X, and __real_X to torch.
extern "C" {

AOTITorchError __real_torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data);
AOTITorchError __wrap_torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data) {
  const AOTITorchError error = __real_torch_get_mutable_data_ptr(tensor, data);
  if (error == AOTI_TORCH_SUCCESS) add_tensor(tensor, *data, true);
  return error;
}

AOTITorchError __real_torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data);
AOTITorchError __wrap_torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data) {
  const AOTITorchError error = __real_torch_get_const_data_ptr(tensor, data);
  if (error != AOTI_TORCH_SUCCESS) return error;
  add_tensor(tensor, *data, false);
  emu::note_written(*data, extent(tensor));  // only what the caller gave is asked for in this way
  return error;
}

AOTITorchError __real_aoti_torch_empty_strided(int64_t dims, const int64_t* sizes, const int64_t* strides,
                                               int32_t dtype, int32_t device_type, int32_t device_index,
                                               AtenTensorHandle* tensor);
AOTITorchError __wrap_aoti_torch_empty_strided(int64_t dims, const int64_t* sizes, const int64_t* strides,
                                               int32_t dtype, int32_t device_type, int32_t device_index,
                                               AtenTensorHandle* tensor) {
  if (emu::enter_library("tensor")) throw std::bad_alloc();
  const AOTITorchError error =
      __real_aoti_torch_empty_strided(dims, sizes, strides, dtype, device_type, device_index, tensor);
  if (error != AOTI_TORCH_SUCCESS) return error;
  void* data;
  STABLE_TORCH_ERROR_CODE_CHECK(__real_torch_get_mutable_data_ptr(*tensor, &data));
  poison(data, extent(*tensor));
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"
