// The arithmetic of a GPU, on the calling thread.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace emu {

// GPUs compute with subnormals whatever the calling thread has set.
class DefaultArithmetic {
#if defined(__SSE__)
 public:
  DefaultArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultArithmetic() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

}  // namespace emu
