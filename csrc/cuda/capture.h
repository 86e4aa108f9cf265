// Graphs that are being captured.
#pragma once

#include "cuda/error.h"

namespace transcast::cuda {

// While it lives, this thread may allocate on the device and load code although a graph is being captured, by it or by
// another thread: what it does is no part of that graph.
class OutsideOfCaptures {
 public:
  OutsideOfCaptures() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~OutsideOfCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfCaptures(const OutsideOfCaptures&) = delete;
  OutsideOfCaptures& operator=(const OutsideOfCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace transcast::cuda
