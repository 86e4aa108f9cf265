// What cuBLASLt documents for FP8 operands, and refuses: types, layouts, scales, epilogues. Where the documentation
// says that an implementation may refuse, this one does.
#include "emu/cublaslt.h"

namespace emu::lt {
namespace {

constexpr Verdict kFine{CUBLAS_STATUS_SUCCESS, ""};
constexpr Verdict unsupported(const char* why) { return {CUBLAS_STATUS_NOT_SUPPORTED, why}; }
constexpr Verdict invalid(const char* why) { return {CUBLAS_STATUS_INVALID_VALUE, why}; }
#define EMU_JUDGE(verdict)                                                  \
  if (const Verdict part = verdict; part.status != CUBLAS_STATUS_SUCCESS) { \
    return part;                                                            \
  }

bool has_bias(uint32_t epilogue) { return epilogue & CUBLASLT_EPILOGUE_BIAS; }
bool has_aux(uint32_t epilogue) { return epilogue & 128; }
bool is_gelu(uint32_t epilogue) { return epilogue & CUBLASLT_EPILOGUE_GELU; }

template <class Value>
Value attribute(const Question& q, cublasLtMatmulDescAttributes_t number) {
  return q.op.get<Value>(number);
}
uint32_t epilogue_of(const Question& q) { return attribute<uint32_t>(q, CUBLASLT_MATMUL_DESC_EPILOGUE); }
uintptr_t pointer(const Question& q, cublasLtMatmulDescAttributes_t number) { return attribute<uintptr_t>(q, number); }

Verdict judge_types(const Question& q) {
  const cudaDataType_t a = q.a.type(), b = q.b.type(), c = q.c.type(), d = q.d.type();
  if (attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) != CUBLAS_COMPUTE_32F ||
      attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_SCALE_TYPE) != CUDA_R_32F) {
    return unsupported("FP8 operands need compute and scale type FP32");
  }
  if (!is_fp8(a) || !is_fp8(b)) return unsupported("both operands must be FP8");
  if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) return unsupported("e5m2 x e5m2");
  const bool mixed = a != b;
  if (d == CUDA_R_8F_E5M2 && !mixed) return unsupported("e5m2 output of e4m3 x e4m3");
  if (is_fp8(d) ? c != CUDA_R_16BF && c != CUDA_R_16F : c != d) return unsupported("type of C beside this D");
  if (!is_fp8(d) && d != CUDA_R_32F && d != CUDA_R_16BF && d != CUDA_R_16F) return unsupported("type of D");
  const cudaDataType_t bias = is_fp8(d) ? c : d == CUDA_R_32F ? CUDA_R_16BF : d;
  if (has_bias(epilogue_of(q)) && bias_type_of(q) != bias) return unsupported("type of the bias beside this D");
  return kFine;
}

Verdict judge_layout(const Layout& layout, const char* why) {
  const bool sound = layout.rows() > 0 && layout.columns() > 0 && layout.leading() >= layout.rows();
  return sound ? kFine : invalid(why);
}

bool is_multiple_of_16_bytes(const Layout& layout) { return layout.leading() * bytes_of(layout.type()) % 16 == 0; }

Verdict judge_shapes(const Question& q, int arch) {
  EMU_JUDGE(judge_layout(q.a, "layout of A"))
  EMU_JUDGE(judge_layout(q.b, "layout of B"))
  EMU_JUDGE(judge_layout(q.c, "layout of C"))
  EMU_JUDGE(judge_layout(q.d, "layout of D"))
  const auto a_op = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_TRANSA);
  const auto b_op = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_TRANSB);
  const int64_t m = a_op == CUBLAS_OP_N ? q.a.rows() : q.a.columns();
  const int64_t k = a_op == CUBLAS_OP_N ? q.a.columns() : q.a.rows();
  const int64_t n = b_op == CUBLAS_OP_N ? q.b.columns() : q.b.rows();
  if (k != (b_op == CUBLAS_OP_N ? q.b.rows() : q.b.columns())) return invalid("A and B disagree about k");
  for (const Layout* out : {&q.c, &q.d}) {
    if (out->rows() != m || out->columns() != n) return invalid("C or D is not m x n");
  }
  const bool any_format = arch / 10 == 10 || arch / 10 == 11;
  if (!any_format && (a_op != CUBLAS_OP_T || b_op != CUBLAS_OP_N)) return unsupported("only TN on this architecture");
  if (m % 16 || k % 16) return unsupported("m and k must be multiples of 16");
  for (const Layout* one : {&q.a, &q.b, &q.c, &q.d}) {
    if (!is_multiple_of_16_bytes(*one)) return unsupported("a leading dimension is no multiple of 16 bytes");
  }
  return kFine;
}

Verdict judge_output_scales(const Question& q) {
  if (pointer(q, CUBLASLT_MATMUL_DESC_C_SCALE_POINTER)) return invalid("C has a scale, but no FP8 type");
  const bool any = pointer(q, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER) || pointer(q, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
  return any && !is_fp8(q.d.type()) ? invalid("D scale or amax with a D that is not FP8") : kFine;
}

#if CUBLAS_VERSION >= 120900
bool is_block(int32_t mode) {
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

Verdict judge_modes(const Question& q, int32_t a, int32_t b, int arch) {
  if (a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && b == a) {
    if (arch < 100 || settings.version < 120800) return unsupported("1x32 scales need sm_100 and cuBLAS 12.8");
    return q.a.rows() % 32 == 0 ? kFine : unsupported("k must be a multiple of 32 for 1x32 scales");
  }
  const bool rows = a == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && b == a;
  const bool both_square = a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && b == a;
  if (!rows && (!is_block(a) || !is_block(b) || both_square)) return unsupported("these scale modes together");
  if (arch != 90 || settings.version < 120900) return unsupported("vector and block scales need sm_90 and cuBLAS 12.9");
  const bool by_four = q.d.rows() % 4 == 0 && q.d.columns() % 4 == 0;
  const bool fast = attribute<int8_t>(q, CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0;
  if (is_block(a) && fast) return unsupported("fast accumulation beside block scales");
  if (is_block(a) && !by_four) return unsupported("block scales need m and n to be multiples of 4");
  return kFine;
}

Verdict judge_input_scales(const Question& q, int arch) {
  const auto a = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  const auto b = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
  if (a == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && b == a) return kFine;
  EMU_JUDGE(judge_modes(q, a, b, arch))
  if (is_fp8(q.d.type())) return unsupported("FP8 D needs scalar scales");
  for (const auto number : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}) {
    const uintptr_t scales = pointer(q, number);
    if (scales == 0 || scales % 16 != 0) return invalid("scale vectors must be there, 16-byte aligned");
  }
  const uint32_t epilogue = epilogue_of(q);
  const bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
  return plain ? kFine : unsupported("an epilogue beside scale vectors");
}
#else
Verdict judge_input_scales(const Question&, int) { return kFine; }
#endif

Verdict judge_bias(const Question& q) {
  const uintptr_t bias = pointer(q, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  if (bias == 0) return invalid("the epilogue needs a bias pointer");
  return bias % 16 == 0 ? kFine : unsupported("the bias is not 16-byte aligned");
}

Verdict judge_aux(const Question& q) {
  const uintptr_t aux = pointer(q, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  const auto leading = attribute<int64_t>(q, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  if (aux == 0) return invalid("the epilogue needs a pointer to its auxiliary matrix");
  if (leading < q.d.rows() || leading % 8 != 0) return invalid("leading dimension of the auxiliary matrix");
  if (aux % 16 != 0) return unsupported("the auxiliary matrix is not 16-byte aligned");
  const cudaDataType_t type = aux_type_of(q), d = q.d.type();
  const bool fits = type == d || (d == CUDA_R_8F_E4M3 && type == CUDA_R_16F);
  return fits ? kFine : unsupported("type of the auxiliary matrix beside this D");
}

Verdict judge_epilogue(const Question& q) {
  const uint32_t epilogue = epilogue_of(q);
  const cudaDataType_t d = q.d.type();
  const bool sixteen_bit = d == CUDA_R_16BF || d == CUDA_R_16F;
  if (settings.refused_epilogues.count(epilogue)) return unsupported("this epilogue, as the test wants it");
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_BIAS: break;
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      if (!sixteen_bit) return unsupported("gelu needs a 16-bit D");
      break;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      if (d != CUDA_R_16BF && d != CUDA_R_8F_E4M3) return unsupported("gelu with its argument needs D BF16 or e4m3");
      break;
    case CUBLASLT_EPILOGUE_DGELU:
      if (is_fp8(d)) return unsupported("dgelu into FP8");
      break;
    default: return unsupported("an epilogue that FP8 operands do not have");
  }
  if (has_bias(epilogue)) EMU_JUDGE(judge_bias(q))
  if (has_aux(epilogue)) EMU_JUDGE(judge_aux(q))
  return kFine;
}

}  // namespace

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

size_t bytes_of(cudaDataType_t type) { return is_fp8(type) ? 1 : type == CUDA_R_32F ? 4 : 2; }

cudaDataType_t bias_type_of(const Question& q) {
  const auto set = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  if (set >= 0) return cudaDataType_t(set);
  const cudaDataType_t d = q.d.type();
  return is_fp8(d) ? q.c.type() : d == CUDA_R_32F ? CUDA_R_16BF : d;
}

cudaDataType_t aux_type_of(const Question& q) {
  const auto set = attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
  return set >= 0 ? cudaDataType_t(set) : q.d.type();
}

Verdict judge(const Question& q, int arch) {
  if (settings.refuses_all) return unsupported("anything, as the test wants it");
  if (arch < 89) return unsupported("FP8 on this architecture");
  if (attribute<int32_t>(q, CUBLASLT_MATMUL_DESC_POINTER_MODE) != CUBLASLT_POINTER_MODE_HOST) {
    return unsupported("alpha and beta on the device");
  }
  EMU_JUDGE(judge_types(q))
  EMU_JUDGE(judge_shapes(q, arch))
  EMU_JUDGE(judge_output_scales(q))
  EMU_JUDGE(judge_input_scales(q, arch))
  return judge_epilogue(q);
}

}  // namespace emu::lt
