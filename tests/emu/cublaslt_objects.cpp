// Descriptors, layouts and preferences: created, set and destroyed as the header says.
#include "emu/cublaslt.h"

#include <map>
#include <mutex>

#include "emu/runtime.h"

namespace emu::lt {
namespace {

constexpr AttributeSize kDescriptor[] = {
    {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_POINTER_MODE, 4},
    {CUBLASLT_MATMUL_DESC_TRANSA, 4},
    {CUBLASLT_MATMUL_DESC_TRANSB, 4},
    {CUBLASLT_MATMUL_DESC_TRANSC, 4},
    {CUBLASLT_MATMUL_DESC_FILL_MODE, 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE, 4},
    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4},
    {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1},
    {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4},
#if CUBLAS_VERSION >= 120800
    {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_C_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_D_SCALE_MODE, 4},
#endif
};
constexpr AttributeSize kLayout[] = {
    {CUBLASLT_MATRIX_LAYOUT_TYPE, 4},        {CUBLASLT_MATRIX_LAYOUT_ORDER, 4},
    {CUBLASLT_MATRIX_LAYOUT_ROWS, 8},        {CUBLASLT_MATRIX_LAYOUT_COLS, 8},
    {CUBLASLT_MATRIX_LAYOUT_LD, 8},          {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4},
    {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8},
};
constexpr AttributeSize kPreference[] = {
    {CUBLASLT_MATMUL_PREF_SEARCH_MODE, 4},           {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8},
    {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 4},
    {CUBLASLT_MATMUL_PREF_IMPL_MASK, 8},
};

template <size_t n>
Attributes attributes_of(const AttributeSize (&sizes)[n]) {
  return {sizes, n};
}

}  // namespace

Attributes::Attributes(const AttributeSize* sizes, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes_[size_t(sizes[i].number)] = uint8_t(sizes[i].bytes);
}

cublasStatus_t Attributes::set(int number, const void* value, size_t bytes) {
  if (number < 0 || size_t(number) >= kMost || !value || bytes == 0 || bytes != bytes_[size_t(number)]) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  uint64_t& word = words_[size_t(number)];
  word = 0;
  memcpy(&word, value, bytes);
  for (Set& known : history_) {
    if (known.number != number) continue;
    known.word = word;
    return CUBLAS_STATUS_SUCCESS;
  }
  history_.push_back({number, bytes, word});
  return CUBLAS_STATUS_SUCCESS;
}

Descriptor::Descriptor(cublasComputeType_t compute, cudaDataType_t scale) : Attributes(attributes_of(kDescriptor)) {
  put(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, int32_t(compute));
  put(CUBLASLT_MATMUL_DESC_SCALE_TYPE, int32_t(scale));
  put(CUBLASLT_MATMUL_DESC_FILL_MODE, int32_t(CUBLAS_FILL_MODE_FULL));
  put(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_DEFAULT));
  put(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int32_t(-1));
  put(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(-1));
}

Layout::Layout(cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading)
    : Attributes(attributes_of(kLayout)) {
  put(CUBLASLT_MATRIX_LAYOUT_TYPE, uint32_t(type));
  put(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  put(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
  put(CUBLASLT_MATRIX_LAYOUT_LD, leading);
  put(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(1));
}

Preference::Preference() : Attributes(attributes_of(kPreference)) {
  put(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_MASK));
  for (int number : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    put(number, uint32_t(256));
  }
}

namespace {

std::mutex of_users;
std::map<const void*, int> users;

bool is_in_use(const void* descriptor) {
  const std::lock_guard<std::mutex> lock(of_users);
  return users.count(descriptor);
}

}  // namespace

void mark(const void* descriptor, int more) {
  const std::lock_guard<std::mutex> lock(of_users);
  if ((users[descriptor] += more) == 0) users.erase(descriptor);
}

namespace {

template <class Object, class Handle, class... Arguments>
cublasStatus_t create(const char* function, Handle* handle, Arguments... arguments) {
  if (const int status = enter_library(function)) return cublasStatus_t(status);
  *handle = reinterpret_cast<Handle>(new Object(arguments...));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t destroy(const char* function, Handle handle) {
  const int status = enter_library(function);
  delete reinterpret_cast<Object*>(handle);
  return cublasStatus_t(status);
}

template <class Object, class Handle>
cublasStatus_t set(const char* function, Handle handle, int number, const void* value, size_t bytes) {
  if (const int status = enter_library(function)) return cublasStatus_t(status);
  if (!handle || is_in_use(handle)) return CUBLAS_STATUS_INVALID_VALUE;
  return reinterpret_cast<Object*>(handle)->set(number, value, bytes);
}

}  // namespace
}  // namespace emu::lt

using namespace emu::lt;

extern "C" {

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* op, cublasComputeType_t compute, cudaDataType_t scale) {
  return create<Descriptor>(__func__, op, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op) { return destroy<Descriptor>(__func__, op); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return set<Descriptor>(__func__, op, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  return create<Layout>(__func__, layout, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy<Layout>(__func__, layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create<Preference>(__func__, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(__func__, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  return set<Preference>(__func__, preference, attribute, value, bytes);
}

}  // extern "C"
