// What cuBLASLt computes by itself, what takes our own kernels besides, and what no hardware does: one table, read by
// the op, by its errors, by transcast.info and by the tests.
#pragma once

#include <string>
#include <vector>

#include "backend.h"

namespace transcast::cuda {

enum class Output : int { f32, bf16, f16, e4m3, e5m2 };
constexpr bool is_fp8(Output out) { return out == Output::e4m3 || out == Output::e5m2; }
constexpr Output output_of(DType dtype) { return Output(int(dtype)); }
constexpr Output output_of(Format format) { return format == Format::e4m3 ? Output::e4m3 : Output::e5m2; }

// Everything that decides how a product is computed.
struct Request {
  Format a, b;
  Scaling a_scaling, b_scaling;
  Epilogue epilogue;
  bool bias, aux;  // aux: gelu_tanh also stores its argument
  DType aux_dtype;
  Output out;
  int arch;     // 89 for compute capability 8.9
  int library;  // cublasLtGetVersion(), 130100 for 13.1
};

enum class Way : int { native, fallback, refused };

struct Support {
  Way way;
  const char* why;
};
Support support(const Request&);

// The table for people: one row per rule, in the order in which they are asked; the first that applies decides.
struct RuleText {
  std::string archs, library, scaling, operands, epilogues, outputs, way, why;
};
std::vector<RuleText> support_table();

// What it says of a BF16 product without epilogue, for each pair of scales.
struct ScalingText {
  std::string scaling, way, why;
};
std::vector<ScalingText> scaling_support(int arch, int library);

std::string name_of(Scaling);
std::string name_of(Output);
std::string name_of(Epilogue);
std::string name_of(Way);

}  // namespace transcast::cuda
