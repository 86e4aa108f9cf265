// The amax pass, shared by amax and by current scaling.
#pragma once

#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace transcast::cpu {

constexpr int64_t kBlock = 8192;  // elements that a kernel call handles in a flat pass: 16-32 KiB, within L1

// A matrix without gaps between its rows is one long row, cut into blocks.
inline Matrix flattened(const Matrix& x) {
  if (x.stride != x.cols && x.rows > 1) return x;
  return {x.data, x.dtype, 1, x.rows * x.cols, x.rows * x.cols};
}

inline const void* element(const Matrix& x, int64_t row, int64_t col) {
  return static_cast<const char*>(x.data) + (row * x.stride + col) * int64_t(size_of(x.dtype));
}

// body(row, col, n) over blocks of at most kBlock elements of each row.
template <class Body>
void for_each_block(const Context& context, int64_t rows, int64_t cols, const Body& body) {
  const int64_t per_row = (cols + kBlock - 1) / kBlock;
  parallel_for(context, rows * per_row, std::min(cols, kBlock), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t col = i % per_row * kBlock;
      body(i / per_row, col, std::min(kBlock, cols - col));
    }
  });
}

inline uint32_t amax_bits(const Context& context, const Matrix& matrix) {
  const Matrix x = flattened(matrix);
  const auto kernel = kernels().amax[int(x.dtype)];
  AtomicMax best;
  for_each_block(context, x.rows, x.cols,
                 [&](int64_t row, int64_t col, int64_t n) { best.update(kernel(element(x, row, col), n)); });
  return best.get();
}

}  // namespace transcast::cpu
