// The stand-in for cuBLASLt: what csrc/cuda calls of it, from the documented rules. It keeps what it is given, refuses
// what the documentation refuses, and computes the rest on the CPU with FP32 sums.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace emu::lt {

// What a test chooses.
struct Settings {
  size_t version = CUBLAS_VERSION;
  int refused_candidates = 0;  // cublasLtMatmul does not run the first n algorithms that the heuristic has named
  bool refuses_all = false;    // the heuristic names none
  std::set<uint32_t> refused_epilogues;
};
inline Settings settings;

// ---- Objects: numbered attributes of at most 8 bytes each

struct AttributeSize {
  int number;
  size_t bytes;
};

class Attributes {
 public:
  Attributes(const AttributeSize* sizes, size_t count);
  cublasStatus_t set(int number, const void* value, size_t bytes);
  template <class Value>
  Value get(int number) const {
    Value value;
    memcpy(&value, &words_[size_t(number)], sizeof value);
    return value;
  }
  template <class Value>
  void put(int number, Value value) {
    set(number, &value, sizeof value);
  }

  struct Set {
    int number;
    size_t bytes;
    uint64_t word;
  };
  const std::vector<Set>& history() const { return history_; }  // the last value of each that was set, in order

 private:
  static constexpr size_t kMost = 40;
  std::array<uint64_t, kMost> words_{};
  std::array<uint8_t, kMost> bytes_{};  // 0: no such attribute
  std::vector<Set> history_;
};

struct Descriptor : Attributes {
  Descriptor(cublasComputeType_t, cudaDataType_t scale_type);
};
struct Layout : Attributes {
  Layout(cudaDataType_t, uint64_t rows, uint64_t columns, int64_t leading);
  cudaDataType_t type() const { return cudaDataType_t(get<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE)); }
  int64_t rows() const { return get<int64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS); }
  int64_t columns() const { return get<int64_t>(CUBLASLT_MATRIX_LAYOUT_COLS); }
  int64_t leading() const { return get<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD); }
};
struct Preference : Attributes {
  Preference();
};

// How many calls use a descriptor now: it refuses to be changed while there are any.
void mark(const void* descriptor, int more);

// The objects of one question to the heuristic.
struct Question {
  const Descriptor& op;
  const Layout &a, &b, &c, &d;
};

size_t bytes_of(cudaDataType_t);
bool is_fp8(cudaDataType_t);

// ---- The rules

struct Verdict {
  cublasStatus_t status;
  const char* why;  // empty if SUCCESS
};
Verdict judge(const Question&, int arch);

// The type of the bias and of the auxiliary matrix, with the documented defaults.
cudaDataType_t bias_type_of(const Question&);
cudaDataType_t aux_type_of(const Question&);

// The heuristic's refusals since reset(), in words.
extern std::vector<std::string> refusals;

// ---- Algorithms

// What an algorithm may rely on: a multiple of how many bytes A, B, C, D, the bias and the auxiliary matrix are.
enum Place { kA, kB, kC, kD, kBias, kAux, kPlaces };

struct Algorithm {
  uint64_t fingerprint;
  uint32_t index, unused;
  uint64_t workspace_bytes;
  uint32_t alignments[kPlaces];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

Algorithm algorithm_for(const Question&, const Preference&, int device);

// Descriptor and layouts as one number, of pointers only whether they are there.
uint64_t fingerprint(const Question&, int device);

// ---- The product

struct Operands {
  float alpha, beta;
  const void *a, *b, *c;
  void* d;
};
void compute(const Question&, const Operands&);

// ---- What tests replay on the real library: each question that was asked, once if only its pointers differ

struct Recorded {
  std::vector<Attributes::Set> op, preference;
  std::array<std::vector<Attributes::Set>, 4> layouts;  // A, B, C, D
};
extern std::vector<Recorded> record;
void note_question(const Question&, const Preference&);

void reset();  // settings and refusals

}  // namespace emu::lt
