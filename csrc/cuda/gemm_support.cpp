// Sources: NVIDIA's documentation of cublasLtMatmul (types, scale modes, epilogues) and the cublasLt.h header. Not yet
// measured on hardware: where a library refuses what is called native here, the plan falls back and says so.
#include "cuda/gemm_support.h"

namespace transcast::cuda {
namespace {

template <class... Values>
constexpr unsigned set(Values... values) {
  return ((1u << int(values)) | ... | 0u);
}
constexpr unsigned kAny = ~0u;

// Epilogues as cuBLASLt tells them apart.
enum class Kind : int { none, bias, relu, relu_bias, gelu, gelu_bias, gelu_aux, gelu_aux_bias, dgelu, dgelu_bias };

Kind kind_of(const Request& r) {
  switch (r.epilogue) {
    case Epilogue::relu: return r.bias ? Kind::relu_bias : Kind::relu;
    case Epilogue::gelu_tanh:
      return r.aux ? (r.bias ? Kind::gelu_aux_bias : Kind::gelu_aux) : (r.bias ? Kind::gelu_bias : Kind::gelu);
    case Epilogue::dgelu: return r.bias ? Kind::dgelu_bias : Kind::dgelu;
    default: return r.bias ? Kind::bias : Kind::none;
  }
}

enum class Operands : int { e4m3_e4m3, e4m3_e5m2, e5m2_e4m3, e5m2_e5m2 };

Operands operands_of(const Request& r) { return Operands(2 * int(r.a == Format::e5m2) + int(r.b == Format::e5m2)); }

struct Rule {
  int arch_min, arch_max, library_min;
  unsigned a_scaling, b_scaling, operands, kinds, outputs;
  bool same_aux_type;  // aux has the output's dtype
  Way way;
  const char* why;
};

constexpr int kNoLimit = 1 << 30;
constexpr int kBlockLibrary = 120900, kMxLibrary = 120900;
constexpr unsigned kHighPrecision = set(Output::f32, Output::bf16, Output::f16);
constexpr unsigned kSixteenBit = set(Output::bf16, Output::f16);
constexpr unsigned kFp8 = set(Output::e4m3, Output::e5m2);
constexpr unsigned kLinear = set(Kind::none, Kind::bias);
constexpr unsigned kRelu = set(Kind::relu, Kind::relu_bias);
constexpr unsigned kMixed = set(Operands::e4m3_e5m2, Operands::e5m2_e4m3);
constexpr unsigned kTensor = set(Scaling::tensor), kRow = set(Scaling::row), kMx = set(Scaling::mx_1x32);
constexpr unsigned kBlocks = set(Scaling::block_1x128, Scaling::block_128x128);

const Rule kRules[] = {
    {0, 88, 0, kAny, kAny, kAny, kAny, kAny, false, Way::refused, "FP8 tensor cores came with compute capability 8.9"},
    {89, kNoLimit, 0, kAny, kAny, set(Operands::e5m2_e5m2), kAny, kAny, false, Way::refused,
     "no FP8 hardware multiplies e5m2 by e5m2"},

    {89, kNoLimit, 0, kTensor, kTensor, kAny, kLinear, set(Output::f32, Output::bf16, Output::f16, Output::e4m3), false,
     Way::native, "one cublasLtMatmul"},
    {89, kNoLimit, 0, kTensor, kTensor, kMixed, kLinear, set(Output::e5m2), false, Way::native, "one cublasLtMatmul"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, set(Kind::gelu, Kind::gelu_bias), kSixteenBit, false, Way::native,
     "one cublasLtMatmul"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, set(Kind::gelu_aux), set(Output::bf16), true, Way::native,
     "one cublasLtMatmul"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, set(Kind::dgelu), set(Output::bf16), true, Way::native,
     "one cublasLtMatmul"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, kRelu, kAny, false, Way::fallback,
     "cuBLASLt does not say what its RELU makes of NaN, which must show; FP32 GEMM, then relu in one kernel"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, set(Kind::gelu_aux_bias), kAny, false, Way::fallback,
     "cuBLASLt adds this bias to the product rounded to the output's dtype; FP32 GEMM, then bias and gelu in one "
     "kernel"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, kAny, kFp8, false, Way::fallback,
     "no such FP8 output in cuBLASLt; FP32 GEMM, then epilogue and cast in one kernel"},
    {89, kNoLimit, 0, kTensor, kTensor, kAny, kAny, kAny, false, Way::fallback,
     "no such epilogue for these types in cuBLASLt; FP32 GEMM, then the epilogue in one kernel"},

    {90, 90, kBlockLibrary, kRow, kRow, kAny, kLinear, kHighPrecision, false, Way::native,
     "one cublasLtMatmul, OUTER_VEC_32F scales"},
    {89, kNoLimit, 0, kRow, kRow, kAny, kAny, kAny, false, Way::fallback,
     "row scales are native on compute capability 9.0 from cuBLASLt 12.9 on; FP32 GEMM, then scales and epilogue in "
     "one kernel"},
    {89, kNoLimit, 0, set(Scaling::block_128x128), set(Scaling::block_128x128), kAny, kAny, kAny, false, Way::refused,
     "cuBLASLt multiplies no two operands with 128x128 scales"},
    {90, 90, kBlockLibrary, kBlocks, kBlocks, kAny, kLinear, kHighPrecision, false, Way::native,
     "one cublasLtMatmul, VEC128_32F and BLK128x128_32F scales"},
    {90, 90, kBlockLibrary, kBlocks, kBlocks, kAny, kAny, kAny, false, Way::fallback,
     "no epilogue and no FP8 output beside block scales in cuBLASLt; FP32 GEMM with them, then one kernel"},
    {89, kNoLimit, 0, kBlocks, kBlocks, kAny, kAny, kAny, false, Way::refused,
     "block scales need compute capability 9.0 and cuBLASLt 12.9"},
    {100, kNoLimit, kMxLibrary, kMx, kMx, kAny, kLinear, kHighPrecision, false, Way::native,
     "one cublasLtMatmul, VEC32_UE8M0 scales"},
    {100, kNoLimit, kMxLibrary, kMx, kMx, kAny, kAny, kAny, false, Way::fallback,
     "cuBLASLt's epilogues and FP8 outputs beside 1x32 scales are not relied on; FP32 GEMM with them, then one kernel"},
    {89, kNoLimit, 0, kMx, kMx, kAny, kAny, kAny, false, Way::refused,
     "1x32 E8M0 scales need compute capability 10.0 or later and cuBLASLt 12.9"},
    {0, kNoLimit, 0, kAny, kAny, kAny, kAny, kAny, false, Way::refused, "these scales do not go together"},
};

bool applies(const Rule& rule, const Request& r) {
  const auto in = [](unsigned set, auto value) { return set >> int(value) & 1; };
  return rule.arch_min <= r.arch && r.arch <= rule.arch_max && r.library >= rule.library_min &&
         in(rule.a_scaling, r.a_scaling) && in(rule.b_scaling, r.b_scaling) && in(rule.operands, operands_of(r)) &&
         in(rule.kinds, kind_of(r)) && in(rule.outputs, r.out) &&
         (!rule.same_aux_type || output_of(r.aux_dtype) == r.out);
}

const char* const kScalings[] = {"tensor", "row", "1x128", "128x128", "1x32 E8M0"};
const char* const kOutputs[] = {"float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"};
const char* const kEpilogues[] = {"none", "relu", "gelu_tanh", "dgelu"};
const char* const kWays[] = {"native", "fallback", "refused"};
const char* const kOperands[] = {"e4m3 x e4m3", "e4m3 x e5m2", "e5m2 x e4m3", "e5m2 x e5m2"};
const char* const kKinds[] = {"none",      "bias",           "relu",          "relu+bias",
                              "gelu_tanh", "gelu_tanh+bias", "gelu_tanh+aux", "gelu_tanh+aux+bias",
                              "dgelu",     "dgelu+bias"};

template <int n>
std::string names(unsigned set, const char* const (&all)[n]) {
  std::string text;
  int count = 0;
  for (int i = 0; i < n; ++i) {
    if (!(set >> i & 1)) continue;
    text += (text.empty() ? "" : ", ") + std::string(all[i]);
    ++count;
  }
  return count == n ? "any" : text;
}

std::string arch_name(int arch) { return std::to_string(arch / 10) + "." + std::to_string(arch % 10); }

std::string archs_of(const Rule& rule) {
  if (rule.arch_min == rule.arch_max) return arch_name(rule.arch_min);
  if (rule.arch_max == kNoLimit) return rule.arch_min == 0 ? "any" : arch_name(rule.arch_min) + " and later";
  return "up to " + arch_name(rule.arch_max);
}

}  // namespace

Support support(const Request& request) {
  for (const Rule& rule : kRules) {
    if (applies(rule, request)) return {rule.way, rule.why};
  }
  return {Way::refused, "no rule applies"};
}

std::vector<RuleText> support_table() {
  std::vector<RuleText> table;
  for (const Rule& rule : kRules) {
    const int library = rule.library_min;
    const std::string number = std::to_string(library / 10000) + "." + std::to_string(library / 100 % 100);
    const std::string a = names(rule.a_scaling, kScalings), b = names(rule.b_scaling, kScalings);
    table.push_back({archs_of(rule), library == 0 ? "any" : number, a == b ? a : a + " x " + b,
                     names(rule.operands, kOperands), names(rule.kinds, kKinds),
                     names(rule.outputs, kOutputs) + (rule.same_aux_type ? ", aux alike" : ""), name_of(rule.way),
                     rule.why});
  }
  return table;
}

std::vector<ScalingText> scaling_support(int arch, int library) {
  constexpr Scaling pairs[][2] = {{Scaling::tensor, Scaling::tensor},
                                  {Scaling::row, Scaling::row},
                                  {Scaling::block_1x128, Scaling::block_1x128},
                                  {Scaling::block_1x128, Scaling::block_128x128},
                                  {Scaling::mx_1x32, Scaling::mx_1x32}};
  std::vector<ScalingText> all;
  for (const auto& [a, b] : pairs) {
    Request request{};
    request.a_scaling = a;
    request.b_scaling = b;
    request.out = Output::bf16;
    request.arch = arch;
    request.library = library;
    const Support found = support(request);
    all.push_back({a == b ? name_of(a) : name_of(a) + " x " + name_of(b), name_of(found.way), found.why});
  }
  return all;
}

std::string name_of(Scaling scaling) { return kScalings[int(scaling)]; }
std::string name_of(Output out) { return kOutputs[int(out)]; }
std::string name_of(Epilogue epilogue) { return kEpilogues[int(epilogue)]; }
std::string name_of(Way way) { return kWays[int(way)]; }

}  // namespace transcast::cuda
