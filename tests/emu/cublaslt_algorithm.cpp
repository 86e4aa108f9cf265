// What an algorithm of the heuristic was chosen for, and the record of what it was asked.
#include <algorithm>
#include <mutex>

#include "emu/cublaslt.h"

namespace emu::lt {

std::vector<Recorded> record;

namespace {

bool is_pointer(int number) {
  switch (number) {
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_C_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_AMAX_D_POINTER: return true;
    default: return false;
  }
}

// Descriptor and layouts as one number, of pointers only whether they are there.
class Fingerprint {
 public:
  void add(uint64_t word) { hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u, hash_ ^= hash_ >> 32; }
  void add(const Attributes& attributes, bool with_pointers) {
    for (const Attributes::Set& one : attributes.history()) {
      add(uint64_t(one.number));
      add(with_pointers && is_pointer(one.number) ? one.word != 0 : one.word);
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 1;
};

}  // namespace

uint64_t fingerprint(const Question& q, int device) {
  Fingerprint all;
  all.add(uint64_t(device));
  all.add(q.op, true);
  for (const Layout* layout : {&q.a, &q.b, &q.c, &q.d}) all.add(*layout, false);
  return all.value();
}

namespace {

uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? 256 : uint32_t(std::min<uintptr_t>(256, address & -address));
}

}  // namespace

Algorithm algorithm_for(const Question& q, const Preference& preference, int device) {
  Algorithm algorithm{};
  algorithm.fingerprint = fingerprint(q, device);
  constexpr int numbers[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int place = kA; place <= kD; ++place) algorithm.alignments[place] = preference.get<uint32_t>(numbers[place]);
  algorithm.alignments[kBias] = alignment_of(q.op.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  algorithm.alignments[kAux] = alignment_of(q.op.get<const void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
  return algorithm;
}

void note_question(const Question& q, const Preference& preference) {
  constexpr size_t kMost = 4096;
  static std::mutex of_record;
  static std::set<uint64_t> known;
  Fingerprint all;
  all.add(fingerprint(q, 0));
  all.add(preference, false);
  const std::lock_guard<std::mutex> lock(of_record);
  if (record.size() >= kMost || !known.insert(all.value()).second) return;
  Recorded one{q.op.history(), preference.history(), {}};
  const Layout* const layouts[] = {&q.a, &q.b, &q.c, &q.d};
  for (size_t i = 0; i < 4; ++i) one.layouts[i] = layouts[i]->history();
  record.push_back(one);
}

}  // namespace emu::lt
