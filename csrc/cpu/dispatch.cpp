// Chooses the vector kernels for the running machine.
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cpu/kernels.h"

namespace transcast::cpu {
namespace {

struct Isa {
  const char* name;
  bool supported;
  bool bf16_arithmetic;
  void (*fill[4])(Kernels&);
};

#define TRANSCAST_FILL(isa) {isa::fill_cast, isa::fill_transpose, isa::fill_decode, isa::fill_epilogue}

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
  const Isa& last = *(std::end(isas) - 1);
  const char* wanted = std::getenv("TRANSCAST_CPU_ISA");
  bool reached = wanted == nullptr || *wanted == '\0';
  for (const Isa& isa : isas) {
    reached = reached || std::strcmp(isa.name, wanted) == 0;
    if (reached && isa.supported) return table_of(isa);
  }
  return table_of(last);  // an unknown name: the path that every machine has
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
