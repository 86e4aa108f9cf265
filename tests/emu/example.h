// Small kernels with and without faults, by which the emulator itself is tested. Tests run them by name.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cuda/launch.cuh"
#include "cuda/vec.cuh"
#include "emu/global_memory.h"
#include "emu/runtime.h"

namespace emu {

using Numbers = std::vector<int64_t>;
using Example = Numbers (*)(const Numbers& arguments);

std::map<std::string, Example>& examples();

struct Registered {
  Registered(const char* name, Example example) { examples()[name] = example; }
};

// Defines the example `name`; its arguments are called `arguments`.
#define EMU_EXAMPLE(name)                                              \
  static emu::Numbers name(const emu::Numbers& arguments);             \
  static const emu::Registered registered_##name(#name, name);         \
  static emu::Numbers name([[maybe_unused]] const emu::Numbers& arguments)

// Zeroed memory that kernels may use while it lives.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count, bool writable = true)
      : count_(count),
        bytes_((count * sizeof(T) + 255) / 256 * 256),
        data_(static_cast<T*>(aligned_alloc(256, bytes_))) {
    memset(data_, 0, bytes_);
    add_memory(data_, count * sizeof(T), writable, Lifetime::lasting);
  }
  ~Buffer() {
    remove_memory(data_);
    free(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  transcast::cuda::Global<T> global() { return {data_}; }
  transcast::cuda::Global<const T> read_only() { return {data_}; }
  T& operator[](size_t i) { return data_[i]; }
  size_t bytes() const { return count_ * sizeof(T); }
  Numbers numbers() const { return {data_, data_ + count_}; }

 private:
  size_t count_, bytes_;
  T* data_;
};

// While it lives, the buffer is memory that an op has just allocated: nothing is in it.
struct Uninitialized {
  template <class T>
  explicit Uninitialized(Buffer<T>& buffer) {
    add_unwritten(&buffer[0], buffer.bytes());
  }
  ~Uninitialized() { forget_memory_of_op(); }
};

}  // namespace emu

using namespace transcast::cuda;  // NOLINT: examples are written like kernels of csrc/cuda
using emu::Buffer;
