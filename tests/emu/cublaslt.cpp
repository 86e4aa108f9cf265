// Handles, the heuristic, and cublasLtMatmul.
#include "emu/cublaslt.h"

#include <mutex>

#include "emu/global_memory.h"
#include "emu/runtime.h"
#include "emu/settings.h"
#include "emu/traffic.h"

struct cublasLtContext {
  int device;
};

namespace emu::lt {

std::vector<std::string> refusals;

namespace {

std::mutex of_refusals;

// Candidates need workspaces of these sizes; the first is the fastest.
constexpr size_t kWorkspaces[] = {1 << 16, 1 << 20, 0, 64 << 20};

cublasStatus_t refused(const Verdict& verdict) {
  const std::lock_guard<std::mutex> lock(of_refusals);
  refusals.push_back(verdict.why);
  return verdict.status;
}

void note_launch(const Question& q) {
  if (!emu::settings.count) return;
  static std::mutex of_launches;
  const std::lock_guard<std::mutex> lock(of_launches);
  Launch launch{};
  launch.kernel = "gemm";
  launch.global[int(Access::read)].bytes = uint64_t(q.a.rows() * q.a.columns() + q.b.rows() * q.b.columns());
  launch.global[int(Access::write)].bytes = uint64_t(q.d.rows() * q.d.columns()) * bytes_of(q.d.type());
  launches.push_back(launch);
}

// ---- cublasLtMatmul's own checks

bool is_multiple(const void* pointer, uint32_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

bool keeps_promises(const Algorithm& algorithm, const Question& q, const Operands& o) {
  const void* const places[kPlaces] = {o.a, o.b, o.beta == 0 ? nullptr : o.c, o.d,
                                       q.op.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER),
                                       q.op.get<const void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)};
  for (int place = 0; place < kPlaces; ++place) {
    if (!is_multiple(places[place], algorithm.alignments[place])) return false;
  }
  return true;
}

// What a call reads may not be set by another thread meanwhile.
class InUse {
 public:
  explicit InUse(const void* descriptor) : descriptor_(descriptor) { mark(descriptor_, 1); }
  ~InUse() { mark(descriptor_, -1); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  const void* descriptor_;
};

// The algorithm writes to all of its workspace.
bool use_workspace(void* workspace, size_t bytes) {
  if (bytes == 0) return true;
  if (!workspace || !is_multiple(workspace, 256) || !may_touch(workspace, bytes, true)) return false;
  memset(workspace, 0x5a, bytes);
  return true;
}

template <class Object, class Handle>
const Object& object(Handle handle) {
  return *reinterpret_cast<const Object*>(handle);
}

}  // namespace

void reset() {
  settings = {};
  refusals.clear();
}

}  // namespace emu::lt

using namespace emu::lt;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (const int status = emu::enter_library(__func__)) return cublasStatus_t(status);
  if (emu::forbidden_by_capture()) return CUBLAS_STATUS_NOT_INITIALIZED;  // it allocates on the device
  *handle = new cublasLtContext{emu::settings.device};
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return settings.version; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference_handle, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (const int status = emu::enter_library(__func__)) return cublasStatus_t(status);
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  const Question q{object<Descriptor>(op), object<Layout>(a), object<Layout>(b), object<Layout>(c), object<Layout>(d)};
  const auto& preference = object<Preference>(preference_handle);
  note_question(q, preference);
  *count = 0;
  const Verdict verdict = judge(q, emu::arch_of(handle->device));
  if (verdict.status != CUBLAS_STATUS_SUCCESS) return refused(verdict);
  Algorithm algorithm = algorithm_for(q, preference, handle->device);
  for (int place = kA; place <= kD; ++place) {
    if (algorithm.alignments[place] < 16) {
      return refused({CUBLAS_STATUS_NOT_SUPPORTED, "a matrix that is not 16-byte aligned"});
    }
  }
  const auto most = preference.get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  for (const size_t bytes : kWorkspaces) {
    if (bytes > most || *count == wanted) continue;
    algorithm.index = uint32_t(*count);
    algorithm.workspace_bytes = bytes;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.workspaceSize = bytes;
    memcpy(&result.algo, &algorithm, sizeof algorithm);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (const int status = emu::enter_library(__func__)) return cublasStatus_t(status);
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (handle->device != emu::settings.device) return CUBLAS_STATUS_ARCH_MISMATCH;
  if (!alpha || !beta || !algo || stream != emu::stream()) return CUBLAS_STATUS_INVALID_VALUE;
  const Question q{object<Descriptor>(op), object<Layout>(a_layout), object<Layout>(b_layout), object<Layout>(c_layout),
                   object<Layout>(d_layout)};
  const Verdict verdict = judge(q, emu::arch_of(handle->device));
  if (verdict.status != CUBLAS_STATUS_SUCCESS) return verdict.status;
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.fingerprint != fingerprint(q, handle->device)) return CUBLAS_STATUS_INVALID_VALUE;
  if (int(algorithm.index) < settings.refused_candidates) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Operands operands{*static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b, c, d};
  if (workspace_bytes < algorithm.workspace_bytes || !keeps_promises(algorithm, q, operands) ||
      !use_workspace(workspace, workspace_bytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const InUse use(op);
  compute(q, operands);
  note_launch(q);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
