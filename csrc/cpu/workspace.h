#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/fp8.h"

namespace transcast::cpu {

// Panels of one call, carved from memory that each calling thread keeps (at most 9 MiB, unless one operand has very
// long rows): fresh pages would cost more than decoding into them.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset(static_cast<char*>(std::aligned_alloc(64, round_up(bytes, 64))));
      capacity_ = memory_ ? bytes : 0;
      if (!memory_) throw std::bad_alloc();
    }
  }

  template <class T>
  T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(memory_.get() + used_);
    used_ += bytes<T>(count);
    return p;
  }

  template <class T>
  static int64_t bytes(int64_t count) {
    return round_up(count * int64_t(sizeof(T)), 64);
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  static inline thread_local std::unique_ptr<char, Free> memory_;
  static inline thread_local int64_t capacity_ = 0;
  int64_t used_ = 0;
};

}  // namespace transcast::cpu
