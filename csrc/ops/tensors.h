// Tensors as the ops see them: checked, flattened to matrices, allocated. The stable ABI's C functions are called
// directly where its C++ classes would go through the dispatcher.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "core/check.h"
#include "ops/library.h"

namespace transcast::ops {

using torch::stable::Tensor;

int32_t dtype_of(const Tensor&);
std::string dtype_name(int32_t dtype);
std::string shape_name(const std::vector<int64_t>& sizes);
std::string shape_name(const Tensor&);

// torch dtype codes of our dtypes and formats.
int32_t code_of(DType);
int32_t code_of(Format);

// The dtype named by an argument; refuses all others by name.
DType high_precision(const char* op, const char* argument, int32_t dtype);
Format format_of(const char* op, const char* argument, int32_t dtype);

// A tensor seen as a matrix: leading dims flattened into rows. `owner` keeps the memory: the tensor itself, or a
// contiguous copy where its strides cannot be expressed as one row stride.
struct View {
  Tensor owner;
  const void* data;  // asked for as such: a lazy clone stays one
  int64_t rows, cols, stride;
};
View view(const Tensor&);

Matrix matrix(const char* op, const char* argument, const Tensor&, View&);
Codes codes(const char* op, const char* argument, const Tensor&, View&);

// One FP32 number in the device's memory: shape (), (1,) or (1, 1).
const float* scalar(const char* op, const char* argument, const Tensor&, const Tensor& like);
// The data may start at any element, but not inside of one.
void check_aligned(const char* op, const char* argument, const Tensor&);
void check_dims(const char* op, const char* argument, const Tensor&);
void check_same_device(const char* op, const char* argument, const Tensor&, const Tensor& like);

// Contiguous, uninitialized, on the device of `like`.
Tensor empty(const Tensor& like, const std::vector<int64_t>& sizes, int32_t dtype);
Tensor empty_scalar(const Tensor& like);  // FP32, shape ()
std::vector<int64_t> sizes_of(const Tensor&);

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// While it lives, the device of `like` is current, and the backend has what it needs from torch there. One definition
// per backend: cpu_scope.cpp, cuda_scope.cpp.
class Scope {
 public:
  explicit Scope(const Tensor& like);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const Context& context() const { return context_; }

 private:
  Context context_;
  void* guard_ = nullptr;
  std::vector<void*> workspaces_;
};

}  // namespace transcast::ops
