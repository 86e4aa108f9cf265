// Byte transpose, and stores around the caches. Compiled once per instruction set (see simd.h).
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace transcast::cpu::TRANSCAST_ISA {
namespace {

TRANSCAST_INLINE bool streamable(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 64 == 0 && stride % 64 == 0;
}

// Non-temporal stores are weakly ordered: they must be visible before another thread is told that they are done.
TRANSCAST_INLINE void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

#if defined(__x86_64__)

// A 16x16 byte block in registers: four rounds of interleaving rows i and i + 8 (SSE2, part of every x86-64).
TRANSCAST_INLINE void interleave(const __m128i (&in)[16], __m128i (&out)[16]) {
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = _mm_unpacklo_epi8(in[i], in[i + 8]);
    out[2 * i + 1] = _mm_unpackhi_epi8(in[i], in[i + 8]);
  }
}

TRANSCAST_INLINE void transpose_16x16(const uint8_t* in, int64_t in_stride, __m128i (&out)[16]) {
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128((const __m128i*)(in + i * in_stride));
  interleave(a, b);
  interleave(b, a);
  interleave(a, b);
  interleave(b, out);
}

template <bool stream>
void transpose_columns(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out,
                       int64_t out_stride) {
  for (int64_t c = 0; c < cols; c += 16) {
    const int valid = int(cols - c < 16 ? cols - c : 16);
    int64_t r = 0;
    for (; r + 64 <= rows; r += 64) {  // four blocks at once: each output row gets a whole cache line
      __m128i block[4][16];
      for (int i = 0; i < 4; ++i) transpose_16x16(in + (r + 16 * i) * in_stride + c, in_stride, block[i]);
      for (int k = 0; k < valid; ++k) {
        __m128i* line = (__m128i*)(out + (c + k) * out_stride + r);
        for (int i = 0; i < 4; ++i) {
          if (stream) {
            _mm_stream_si128(line + i, block[i][k]);
          } else {
            _mm_storeu_si128(line + i, block[i][k]);
          }
        }
      }
    }
    for (; r < rows; r += 16) {
      __m128i block[16];
      transpose_16x16(in + r * in_stride + c, in_stride, block);
      for (int k = 0; k < valid; ++k) _mm_storeu_si128((__m128i*)(out + (c + k) * out_stride + r), block[k]);
    }
  }
}

void transpose(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out, int64_t out_stride,
               bool stream) {
  if (!stream || !streamable(out, out_stride)) {
    return transpose_columns<false>(in, in_stride, rows, cols, out, out_stride);
  }
  transpose_columns<true>(in, in_stride, rows, cols, out, out_stride);
  finish_streaming();
}

void stream_copy(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out,
                 int64_t out_stride) {
  const bool aligned = streamable(out, out_stride);
  for (int64_t r = 0; r < rows; ++r, in += in_stride, out += out_stride) {
    int64_t c = 0;
    if (aligned) {
      for (; c + 16 <= cols; c += 16) {
        _mm_stream_si128((__m128i*)(out + c), _mm_loadu_si128((const __m128i*)(in + c)));
      }
    }
    memcpy(out + c, in + c, cols - c);
  }
  finish_streaming();
}

#else

void transpose(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out, int64_t out_stride,
               bool) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

void stream_copy(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t cols, uint8_t* out,
                 int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) memcpy(out + r * out_stride, in + r * in_stride, cols);
}

#endif

}  // namespace

void fill_transpose(Kernels& k) {
  k.transpose = transpose;
  k.stream_copy = stream_copy;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
