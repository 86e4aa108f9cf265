// Every access of a kernel to memory. Global pointers are wrapped, so that a dereference elsewhere stands out (a test
// looks for them); loads and stores are predicated and called by every lane, whose inactive ones get zeros and write
// nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace transcast::cuda {

// An address in global memory.
template <class T>
struct Global {
  T* address;
  TRANSCAST_HD Global operator+(int64_t elements) const { return {address + elements}; }
  template <class U>
  TRANSCAST_HD Global<U> as() const {
    return {reinterpret_cast<U*>(address)};
  }
};

// *p if ok, else zero. Not __ldg: such loads are free to move behind the stores that come after them in the source, and
// the compiler does that to save registers, when they are meant to be in flight together.
template <class T>
__device__ __forceinline__ T ldg(Global<const T> p, bool ok) {
  return ok ? *p.address : T{};
}

template <class T>
__device__ __forceinline__ void stg(Global<T> p, T value, bool ok) {
  if (ok) *p.address = value;
}

// A load that sees what other blocks have written, after a fence.
template <class T>
__device__ __forceinline__ T ldcg(Global<T> p) {
  return __ldcg(p.address);
}

// Fields of the kernel's shared struct.
template <class T>
__device__ __forceinline__ T lds(const T& field) {
  return field;
}

template <class T>
__device__ __forceinline__ void sts(T& field, T value) {
  field = value;
}

// Atomics return the old value. atomic_inc wraps to 0 after `last`.
__device__ __forceinline__ uint32_t atomic_max(Global<uint32_t> p, uint32_t value) {
  return atomicMax(p.address, value);
}

__device__ __forceinline__ uint32_t atomic_inc(Global<uint32_t> p, uint32_t last) {
  return atomicInc(p.address, last);
}

__device__ __forceinline__ uint32_t atomic_exchange(Global<uint32_t> p, uint32_t value) {
  return atomicExch(p.address, value);
}

// What this thread wrote before is visible on the whole device before what it writes after.
__device__ __forceinline__ void fence() { __threadfence(); }

}  // namespace transcast::cuda
