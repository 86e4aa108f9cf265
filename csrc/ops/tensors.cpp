#include "ops/tensors.h"

#include <algorithm>

#include "core/memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace transcast::ops {
namespace {

constexpr int64_t kMaxDims = 64;  // as many as torch's own ops take

int64_t device_of(const Tensor& tensor) {
  int32_t type, index;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  return int64_t(type) << 32 | uint32_t(index);
}

// The row stride with which leading dims collapse into one, or nothing. Dims of size 1 have no say.
std::optional<int64_t> row_stride(const Tensor& tensor) {
  const int64_t dims = tensor.dim();
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  if (sizes[dims - 1] > 1 && strides[dims - 1] != 1) return std::nullopt;
  std::optional<int64_t> stride;
  int64_t expected = 0;
  for (int64_t d = dims - 2; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (stride && strides[d] != expected) return std::nullopt;
    if (!stride) stride = strides[d];
    expected = strides[d] * sizes[d];
  }
  return stride.value_or(sizes[dims - 1]);
}

// A large block of host memory is made of pages that the first write has to fetch one by one, which can cost more than
// the op: ask for 2 MiB pages. Dequantizing 4096x4096 to FP32 took 13 ms instead of 32 (2026-11, AVX-512, one thread).
void use_huge_pages(const Tensor& tensor) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int64_t page = 2 << 20;
  const int64_t bytes = tensor.numel() * int64_t(tensor.element_size());
  if (bytes < kFreshBytes) return;
  const auto address = reinterpret_cast<int64_t>(tensor.mutable_data_ptr());
  const int64_t first = round_up(address, page), last = (address + bytes) / page * page;
  madvise(reinterpret_cast<void*>(first), size_t(last - first), MADV_HUGEPAGE);  // advice: refusal costs nothing
#else
  (void)tensor;
#endif
}

}  // namespace

int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

std::string dtype_name(int32_t dtype) {
  using torch::headeronly::ScalarType;  // for two dtypes that torch 2.10 has no function for
  static const std::pair<int32_t, const char*> names[] = {
      {aoti_torch_dtype_float32(), "float32"},
      {aoti_torch_dtype_bfloat16(), "bfloat16"},
      {aoti_torch_dtype_float16(), "float16"},
      {aoti_torch_dtype_float64(), "float64"},
      {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
      {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
      {aoti_torch_dtype_float8_e4m3fnuz(), "float8_e4m3fnuz"},
      {aoti_torch_dtype_float8_e5m2fnuz(), "float8_e5m2fnuz"},
      {int32_t(ScalarType::Float8_e8m0fnu), "float8_e8m0fnu"},
      {int32_t(ScalarType::Float4_e2m1fn_x2), "float4_e2m1fn_x2"},
      {aoti_torch_dtype_uint8(), "uint8"},
      {aoti_torch_dtype_uint16(), "uint16"},
      {aoti_torch_dtype_uint32(), "uint32"},
      {aoti_torch_dtype_uint64(), "uint64"},
      {aoti_torch_dtype_int8(), "int8"},
      {aoti_torch_dtype_int16(), "int16"},
      {aoti_torch_dtype_int32(), "int32"},
      {aoti_torch_dtype_int64(), "int64"},
      {aoti_torch_dtype_bool(), "bool"},
      {aoti_torch_dtype_complex32(), "complex32"},
      {aoti_torch_dtype_complex64(), "complex64"},
      {aoti_torch_dtype_complex128(), "complex128"},
  };
  for (const auto& [code, name] : names) {
    if (code == dtype) return name;
  }
  return "a dtype that no op takes";
}

std::string shape_name(const std::vector<int64_t>& sizes) {
  std::string name = "(";
  for (int64_t size : sizes) name += (name.size() > 1 ? ", " : "") + std::to_string(size);
  return name + (sizes.size() == 1 ? ",)" : ")");
}

std::string shape_name(const Tensor& tensor) { return shape_name(sizes_of(tensor)); }

int32_t code_of(DType dtype) {
  static const int32_t codes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_bfloat16(),
                                  aoti_torch_dtype_float16()};
  return codes[int(dtype)];
}

int32_t code_of(Format format) {
  static const int32_t codes[] = {aoti_torch_dtype_float8_e4m3fn(), aoti_torch_dtype_float8_e5m2()};
  return codes[int(format)];
}

DType high_precision(const char* op, const char* argument, int32_t dtype) {
  for (DType candidate : {DType::f32, DType::bf16, DType::f16}) {
    if (code_of(candidate) == dtype) return candidate;
  }
  refuse(op, argument, "must be float32, bfloat16 or float16, got ", dtype_name(dtype));
}

Format format_of(const char* op, const char* argument, int32_t dtype) {
  for (Format candidate : {Format::e4m3, Format::e5m2}) {
    if (code_of(candidate) == dtype) return candidate;
  }
  refuse(op, argument, "must be float8_e4m3fn or float8_e5m2, got ", dtype_name(dtype));
}

View view(const Tensor& tensor) {
  const int64_t dims = tensor.dim();
  if (dims == 0) return {tensor, tensor.const_data_ptr(), 1, 1, 1};
  const int64_t cols = tensor.size(dims - 1);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < dims; ++d) rows *= tensor.size(d);
  if (rows == 0 || cols == 0) return {tensor, nullptr, rows, cols, cols};
  if (const auto stride = row_stride(tensor)) return {tensor, tensor.const_data_ptr(), rows, cols, *stride};
  const Tensor copy = torch::stable::contiguous(tensor);
  return {copy, copy.const_data_ptr(), rows, cols, cols};
}

Matrix matrix(const char* op, const char* argument, const Tensor& tensor, View& v) {
  const DType dtype = high_precision(op, argument, dtype_of(tensor));
  check_dims(op, argument, tensor);
  check_aligned(op, argument, tensor);
  v = view(tensor);
  return {v.data, dtype, v.rows, v.cols, v.stride};
}

Codes codes(const char* op, const char* argument, const Tensor& tensor, View& v) {
  const Format format = format_of(op, argument, dtype_of(tensor));
  check_dims(op, argument, tensor);
  v = view(tensor);
  return {static_cast<const uint8_t*>(v.data), format, v.rows, v.cols, v.stride};
}

const float* scalar(const char* op, const char* argument, const Tensor& tensor, const Tensor& like) {
  check(dtype_of(tensor) == code_of(DType::f32), op, argument, "must be float32, got ",
        dtype_name(dtype_of(tensor)));
  check(tensor.numel() == 1, op, argument, "must hold one element, got shape ", shape_name(tensor));
  check_same_device(op, argument, tensor, like);
  check_aligned(op, argument, tensor);
  return static_cast<const float*>(tensor.const_data_ptr());
}

void check_dims(const char* op, const char* argument, const Tensor& tensor) {
  check(tensor.dim() <= kMaxDims, op, argument, "must have at most ", kMaxDims, " dimensions, got ", tensor.dim());
}

void check_aligned(const char* op, const char* argument, const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  check(address % tensor.element_size() == 0, op, argument, "must be aligned to its ", tensor.element_size(),
        "-byte elements");
}

void check_same_device(const char* op, const char* argument, const Tensor& tensor, const Tensor& like) {
  check(device_of(tensor) == device_of(like), op, argument, "must be on the same device as the first argument");
}

Tensor empty(const Tensor& like, const std::vector<int64_t>& sizes, int32_t dtype) {
  int64_t strides[kMaxDims];  // outputs have no more dims than the inputs that check_dims has seen
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  }
  int32_t type, index;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides, dtype, type,
                                                         index, &handle));
  Tensor tensor(handle);
  if (tensor.is_cpu()) use_huge_pages(tensor);
  return tensor;
}

Tensor empty_scalar(const Tensor& like) { return empty(like, {}, code_of(DType::f32)); }

std::vector<int64_t> sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

}  // namespace transcast::ops
