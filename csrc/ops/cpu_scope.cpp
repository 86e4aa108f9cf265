// torch's thread pool and BLAS, as plain functions for the CPU backend.
#include <array>

#include "ops/tensors.h"

// torch's own BLAS where it exports the Fortran interface (its x86-64 wheels do); null elsewhere.
extern "C" {
__attribute__((weak)) void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                                  const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                                  const float* beta, float* c, const int* ldc);
__attribute__((weak)) void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n,
                                             const int* k, const float* alpha, const uint16_t* a, const int* lda,
                                             const uint16_t* b, const int* ldb, const float* beta, float* c,
                                             const int* ldc);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);  // returns the previous setting
}

namespace transcast::ops {
namespace {

void parallel_for(int64_t n, int64_t grain, Context::Range range, void* state) {
  if (n <= 0) return;
  // The common small case without a call into torch.
  if (n <= grain) return range(0, n, state);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, n, grain, range, state));
}

// MKL splits even tiny BF16 products over its threads, where waking one takes longer than the product.
class OneThreadIfSmall {
 public:
  OneThreadIfSmall(int64_t m, int64_t n, int64_t k) : active_(MKL_Set_Num_Threads_Local && m * n * k < kSmall) {
    if (active_) previous_ = MKL_Set_Num_Threads_Local(1);
  }
  ~OneThreadIfSmall() {
    if (active_) MKL_Set_Num_Threads_Local(previous_);
  }

 private:
  static constexpr int64_t kSmall = 192 * 192 * 192;  // multiply-adds; some 20 us on one thread
  const bool active_;
  int previous_ = 0;
};

int threads() { return int(torch::stable::get_num_threads()); }

// BLAS is column-major: c^T[n, m] = b[n, k] * a[m, k]^T.
template <class T, class Gemm>
void blas(Gemm gemm, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          bool accumulate, float* c, int64_t ldc) {
  const int dims[] = {int(n), int(m), int(k)}, lds[] = {int(ldb), int(lda), int(ldc)};
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  const OneThreadIfSmall guard(m, n, k);
  gemm("T", "N", &dims[0], &dims[1], &dims[2], &one, b, &lds[0], a, &lds[1], &beta, c, &lds[2]);
}

void sgemm_blas(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                bool accumulate, float* c, int64_t ldc) {
  blas(sgemm_, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

void bf16_gemm_blas(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                    bool accumulate, float* c, int64_t ldc) {
  blas(gemm_bf16bf16f32_, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

Tensor wrap(const float* data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  const int64_t sizes[] = {rows, cols}, strides[] = {row_stride, col_stride};
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob_v2(
      const_cast<float*>(data), 2, sizes, strides, 0, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0,
      &handle, aoti_torch_layout_strided(), nullptr, 0));
  return Tensor(handle);
}

// Without an exported BLAS the same product goes through torch's dispatcher, as the out= form, which autocast leaves in
// FP32.
void sgemm_dispatcher(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                      bool accumulate, float* c, int64_t ldc) {
  std::vector<float> product(accumulate ? m * n : 0);
  const Tensor out = accumulate ? wrap(product.data(), m, n, n, 1) : wrap(c, m, n, ldc, 1);
  std::array<StableIValue, 3> stack{torch::stable::detail::from(wrap(a, m, k, lda, 1)),
                                    torch::stable::detail::from(wrap(b, k, n, 1, ldb)),
                                    torch::stable::detail::from(out)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the returned reference
  for (size_t i = 0; i < product.size(); ++i) c[int64_t(i) / n * ldc + int64_t(i) % n] += product[i];
}

}  // namespace

#if defined(TRANSCAST_DISPATCHER_SGEMM)  // set by the sanitizer build, so that this path is tested too
Scope::Scope(const Tensor&) : context_{parallel_for, threads, sgemm_dispatcher, nullptr} {}
#else
Scope::Scope(const Tensor&)
    : context_{parallel_for, threads, sgemm_ ? sgemm_blas : sgemm_dispatcher,
               gemm_bf16bf16f32_ ? bf16_gemm_blas : nullptr} {}
#endif
Scope::~Scope() = default;

}  // namespace transcast::ops
