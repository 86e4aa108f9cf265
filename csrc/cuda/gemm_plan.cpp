#include "cuda/gemm_plan.h"

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/capture.h"
#include "cuda/cublaslt.h"

namespace transcast::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr size_t kMostPlans = 1024;  // some 10 KB each with their descriptors

// C is read for accumulation, and has a 16-bit layout beside FP8 outputs, of the bias's type.
cudaDataType_t c_type_of(const Product& p) {
  return is_fp8(p.request.out) ? type_of(p.bias ? p.bias_dtype : DType::bf16) : type_of(p.request.out);
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
  switch (p.request.epilogue) {
    case Epilogue::relu: return p.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Epilogue::gelu_tanh:
      if (p.request.aux) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::dgelu: return CUBLASLT_EPILOGUE_DGELU;
    default: return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// Only asked for where library_version() has it.
void set_scale_modes(const Descriptor& descriptor, Scaling a, Scaling b) {
#if CUBLAS_VERSION >= 120800
  const auto mode_of = [](Scaling scaling) -> int32_t {
    switch (scaling) {
#if CUBLAS_VERSION >= 120900
      case Scaling::row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      case Scaling::block_1x128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      case Scaling::block_128x128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
#endif
      case Scaling::mx_1x32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
      default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    }
  };
  if (a == Scaling::tensor && b == Scaling::tensor) return;
  set(descriptor, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(a));
  set(descriptor, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(b));
#else
  (void)descriptor, (void)a, (void)b;
#endif
}

cublasLtHandle_t handle_of(int device) {
  struct Handle {
    std::once_flag made;
    cublasLtHandle_t handle;
  };
  static std::array<Handle, kMaxDevices> handles;
  Handle& one = handles.at(size_t(device));
  std::call_once(one.made, [&] {
    const OutsideOfCaptures now;
    check(cublasLtCreate(&one.handle), "cublasLtCreate");
  });
  return one.handle;
}

// cuBLASLt thinks in columns: its D is our d transposed, so that its A is b and its B is a, both K-contiguous (TN).
class Plan {
 public:
  Plan(const CudaContext& context, const Product& p) : device_(context.device), description_(describe(p)) {
    const Request& r = p.request;
    check(cublasLtMatmulDescCreate(descriptor_.receive(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(descriptor_, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(descriptor_, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(descriptor_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(p.fast_accum));
    set(descriptor_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
    if (p.bias) set(descriptor_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(type_of(p.bias_dtype)));
    if (p.aux) {
      set(descriptor_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_stride);
      set(descriptor_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int32_t(type_of(r.aux_dtype)));
    }
    set_scale_modes(descriptor_, r.b_scaling, r.a_scaling);
    set_pointers(p);
    create(a_, type_of(r.b), p.k, p.n, p.b_stride);
    create(b_, type_of(r.a), p.k, p.m, p.a_stride);
    create(c_, c_type_of(p), p.n, p.m, p.d_stride);
    create(d_, type_of(r.out), p.n, p.m, p.d_stride);
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.receive()), "cublasLtMatmulPreferenceCreate");
    const size_t most = r.arch >= 90 ? 32 << 20 : 4 << 20;
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.d));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.d));
    ask(preference);
  }

  bool run(const CudaContext& context, const Product& p) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    set_pointers(p);
    const float one = 1.0f, beta = p.accumulate ? 1.0f : 0.0f;
    for (; chosen_ < count_; ++chosen_) {
      const cublasLtMatmulHeuristicResult_t& candidate = candidates_[size_t(chosen_)];
      const int64_t bytes = int64_t(candidate.workspaceSize);
      void* workspace = bytes ? context.allocate(bytes, context.state) : nullptr;
      const cublasStatus_t status =
          cublasLtMatmul(handle_of(device_), descriptor_.get(), &one, p.b, a_.get(), p.a, b_.get(), &beta, p.d,
                         c_.get(), p.d, d_.get(), &candidate.algo, workspace, size_t(bytes), stream_of(context));
      if (status == CUBLAS_STATUS_SUCCESS) return true;
      if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
        throw std::runtime_error("transcast: cublasLtMatmul failed with " + described(status) + " for " + description_);
      }
    }
    return false;
  }

  PlanFacts facts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool any = chosen_ < count_;
    return {device_, description_, count_, any ? chosen_ : -1,
            any ? int64_t(candidates_[size_t(chosen_)].workspaceSize) : 0, calls_};
  }

 private:
  // The heuristic reads their values, too: it infers the alignment from them.
  void set_pointers(const Product& p) {
    set(descriptor_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale_inv);
    set(descriptor_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale_inv);
    if (p.bias) set(descriptor_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.aux) set(descriptor_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
    if (p.d_scale) set(descriptor_, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, static_cast<const void*>(p.d_scale));
    if (p.d_amax) set(descriptor_, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, static_cast<void*>(p.d_amax));
  }

  void ask(const Preference& preference) {
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results;
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_of(device_), descriptor_.get(), a_.get(), b_.get(), c_.get(), d_.get(),
                                       preference.get(), kCandidates, results.data(), &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < found; ++i) {
      if (results[size_t(i)].state == CUBLAS_STATUS_SUCCESS) candidates_[size_t(count_++)] = results[size_t(i)];
    }
  }

  const int device_;
  const std::string description_;
  Descriptor descriptor_;
  Layout a_, b_, c_, d_;
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates_;
  int count_ = 0, chosen_ = 0;  // chosen_ == count_: no algorithm
  int64_t calls_ = 0;
  std::mutex mutex_;  // a descriptor holds the pointers of one call
};

// Least recently used plans go first.
class Cache {
 public:
  std::shared_ptr<Plan> find(const CudaContext& context, const Product& p) {
    const Key key = key_of(context.device, p);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
    entries_.emplace_front(key, made(context, p));
    index_[key] = entries_.begin();
    if (entries_.size() > kMostPlans) {
      index_.erase(entries_.back().first);
      entries_.pop_back();
    }
    return entries_.front().second;
  }

  std::vector<PlanFacts> facts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<PlanFacts> all;
    for (const auto& entry : entries_) all.push_back(entry.second->facts());
    return all;
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    index_.clear();
    entries_.clear();
  }

 private:
  // The heuristic may load code.
  static std::shared_ptr<Plan> made(const CudaContext& context, const Product& p) {
    const OutsideOfCaptures now;
    try {
      return std::make_shared<Plan>(context, p);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string(error.what()) + " for " + describe(p));
    }
  }

  using Entries = std::list<std::pair<Key, std::shared_ptr<Plan>>>;
  std::mutex mutex_;
  Entries entries_;
  std::unordered_map<Key, Entries::iterator, KeyHash> index_;
};

Cache& cache() {
  static Cache instance;
  return instance;
}

}  // namespace

bool run(const CudaContext& context, const Product& p) { return cache().find(context, p)->run(context, p); }

std::vector<PlanFacts> plans() { return cache().facts(); }
void clear_plans() { cache().clear(); }

int library_version() { return int(std::min<size_t>(cublasLtGetVersion(), CUBLAS_VERSION)); }

}  // namespace transcast::cuda
