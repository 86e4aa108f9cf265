// cuBLASLt products: descriptors built once, the heuristic asked once, and then only pointers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gemm_product.h"
#include "cuda/state.h"

namespace transcast::cuda {

// Runs it on the context's stream. False if cuBLASLt has no algorithm for it; throws on any other failure.
bool run(const CudaContext&, const Product&);

// What one plan is and did.
struct PlanFacts {
  int device;
  std::string description;  // the whole descriptor in one line
  int candidates, chosen;   // chosen: -1 if cuBLASLt has no algorithm
  int64_t workspace_bytes, calls;
};
std::vector<PlanFacts> plans();  // most recently used first
void clear_plans();

// Of cuBLASLt: what is loaded, or what this was built with if that is older.
int library_version();

}  // namespace transcast::cuda
