// Chooses the vector kernels for the running machine.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cpu/kernels.h"

namespace transcast::cpu {
namespace {

struct Isa {
  const char* name;
  bool supported;
  bool bf16_arithmetic;
  void (*fill[5])(Kernels&);
};

#define TRANSCAST_FILL(isa) {isa::fill_cast, isa::fill_transpose, isa::fill_decode, isa::fill_epilogue, isa::fill_act}

Kernels table_of(const Isa& isa) {
  Kernels table{};
  table.name = isa.name;
  table.bf16_arithmetic = isa.bf16_arithmetic;
  for (auto fill : isa.fill) fill(table);
  return table;
}

Kernels choose() {
  const Isa isas[] = {
#if defined(__x86_64__)
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"),
       bool(__builtin_cpu_supports("avx512bf16")), TRANSCAST_FILL(avx512)},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
       false, TRANSCAST_FILL(avx2)},
#endif
      {"plain", true, false, TRANSCAST_FILL(plain)},
  };
  const char* wanted = std::getenv("TRANSCAST_CPU_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (const Isa& isa : isas) {
    if (isa.supported && (any || std::strcmp(isa.name, wanted) == 0)) return table_of(isa);
  }
  throw std::invalid_argument(std::string("transcast: TRANSCAST_CPU_ISA must name one of ") + compiled_isas() +
                              " that this machine has, got " + wanted);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels table = choose();
  return table;
}

const char* compiled_isas() {
#if defined(__x86_64__)
  return "plain,avx2,avx512";
#else
  return "plain";
#endif
}

}  // namespace transcast::cpu
