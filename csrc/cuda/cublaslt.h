// cuBLASLt's objects, owned; its calls, checked; its types for ours.
#pragma once

#include <cublasLt.h>

#include <stdexcept>
#include <string>

#include "cuda/gemm_support.h"

namespace transcast::cuda {

inline std::string described(cublasStatus_t status) { return cublasLtGetStatusName(status); }

inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("transcast: ") + call + " failed with " + described(status));
}

inline cudaDataType_t type_of(Format format) { return format == Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }
inline cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}
inline cudaDataType_t type_of(Output out) {
  switch (out) {
    case Output::e4m3: return CUDA_R_8F_E4M3;
    case Output::e5m2: return CUDA_R_8F_E5M2;
    default: return type_of(DType(int(out)));
  }
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_) destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* receive() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Descriptor = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class Value>
void set(const Descriptor& descriptor, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

inline void create(Layout& layout, cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading) {
  check(cublasLtMatrixLayoutCreate(layout.receive(), type, uint64_t(rows), uint64_t(columns), leading),
        "cublasLtMatrixLayoutCreate");
}

}  // namespace transcast::cuda
