// Work split over torch's threads, in IEEE mode.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backend.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace transcast::cpu {

// Subnormals count and rounding is to nearest, whatever torch.set_flush_denormal has set for this thread.
class IeeeMode {
 public:
#if defined(__x86_64__)
  IeeeMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~IeeeMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t(0)));
  }
  ~IeeeMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// How much work is worth a second thread: waking one costs as much as casting about this many elements.
constexpr int64_t kElementsPerThread = 32768;

// body(begin, end) over pieces of [0, n), where one index stands for `elements` elements of work.
template <class Body>
void parallel_for(const Context& context, int64_t n, int64_t elements, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, elements));
  context.parallel_for(
      n, grain,
      [](int64_t begin, int64_t end, void* state) {
        IeeeMode guard;
        (*static_cast<const Body*>(state))(begin, end);
      },
      const_cast<Body*>(&body));
}

// The maximum of all pieces; unsigned bits, so that the order of the pieces cannot show.
class AtomicMax {
 public:
  void update(uint32_t bits) {
    uint32_t seen = value_.load(std::memory_order_relaxed);
    while (seen < bits && !value_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  uint32_t get() const { return value_.load(); }

 private:
  std::atomic<uint32_t> value_{0};
};

}  // namespace transcast::cpu
