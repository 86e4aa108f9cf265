// amax, encode, byte transpose and column sums. Compiled once per instruction set (see simd.h).
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace transcast::cpu::TRANSCAST_ISA {
namespace {

// Plain loops that compilers turn into unsigned max instructions; blocks keep enough independent work in flight.
template <class T>
uint32_t amax(const void* data, int64_t n) {
  using S = typename T::storage;
  constexpr S mask = S(~S(0)) >> 1;
  const S* x = static_cast<const S*>(data);
  constexpr int64_t block = 256 / sizeof(S);
  S lane[block] = {};
  int64_t i = 0;
  for (; i + block <= n; i += block) {
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2048);
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2112);
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2176);
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2240);
    for (int64_t j = 0; j < block; ++j) {
      const S magnitude = x[i + j] & mask;
      lane[j] = magnitude > lane[j] ? magnitude : lane[j];
    }
  }
  S best = 0;
  for (int64_t j = 0; j < block; ++j) best = lane[j] > best ? lane[j] : best;
  for (; i < n; ++i) {
    const S magnitude = x[i] & mask;
    best = magnitude > best ? magnitude : best;
  }
  // The order of magnitudes is the order of their bits in each of the three dtypes.
  S one[V::lanes] = {best};
  const typename V::F widened = V::load(T{}, one);
  float values[V::lanes];
  V::store(values, widened);
  return bits_of(values[0]);
}

// The vector form of transcast::encode (core/fp8.h); the code is in the low byte of each lane.
template <class Fp8>
TRANSCAST_INLINE V::U encode(V::F value) {
  constexpr int shift = 23 - Fp8::mantissa_bits;
  // steps = bits(sum) - exponent - (shift << 23): of these only the low byte matters, and there both vanish.
  constexpr uint32_t offset = uint32_t(-int32_t(Fp8::min_normal_bits >> shift));
  const V::U bits = V::to_bits(value);
  V::U magnitude = V::and_(bits, V::bits(0x7fffffffu));
  const V::U nan = V::greater(magnitude, V::bits(kInfBits));
  magnitude = V::min(magnitude, V::bits(Fp8::max_bits));
  const V::U exponent = V::max(V::and_(magnitude, V::bits(kInfBits)), V::bits(Fp8::min_normal_bits));
  const V::F rounder = V::to_float(V::add(exponent, V::bits(uint32_t(shift) << 23)));
  const V::U sum = V::to_bits(V::add(V::to_float(magnitude), rounder));
  V::U code = V::add(sum, V::add(V::shift_right<shift>(exponent), V::bits(offset)));
  code = V::and_(code, V::bits(0x7fu));
  code = V::or_(code, V::shift_right<25>(nan));
  const V::U sign = V::and_not(nan, V::and_(bits, V::bits(0x80000000u)));
  return V::or_(code, V::shift_right<24>(sign));
}

template <class T, class Fp8>
TRANSCAST_INLINE void encode_step(const typename T::storage* x, V::F scale, uint8_t* q, V::U& amax) {
  const V::F a = V::load(T{}, x), b = V::load(T{}, x + V::lanes);
  const V::F c = V::load(T{}, x + 2 * V::lanes), d = V::load(T{}, x + 3 * V::lanes);
  const V::U mask = V::bits(0x7fffffffu);
  amax = V::max(amax, V::max(V::max(V::and_(V::to_bits(a), mask), V::and_(V::to_bits(b), mask)),
                             V::max(V::and_(V::to_bits(c), mask), V::and_(V::to_bits(d), mask))));
  const V::U qa = encode<Fp8>(V::mul(a, scale)), qb = encode<Fp8>(V::mul(b, scale));
  const V::U qc = encode<Fp8>(V::mul(c, scale)), qd = encode<Fp8>(V::mul(d, scale));
  V::store_bytes(q, qa, qb, qc, qd);
}

template <class T, class Fp8>
uint32_t encode(const void* data, int64_t x_stride, int64_t rows, int64_t cols, float scale, uint8_t* q,
                int64_t q_stride) {
  using S = typename T::storage;
  constexpr int64_t step = 4 * V::lanes;
  // What to fetch ahead: in a tile the same columns some rows below, in a flat pass the bytes that follow.
  const int64_t ahead = rows > 1 ? 8 * x_stride * int64_t(sizeof(S)) : 1024;
  const V::F factor = V::set(scale);
  V::U amax = V::bits(0);
  for (int64_t r = 0; r < rows; ++r) {
    const S* x = static_cast<const S*>(data) + r * x_stride;
    uint8_t* out = q + r * q_stride;
    int64_t c = 0;
    for (; c + step <= cols; c += step) {
      for (size_t line = 0; line < step * sizeof(S); line += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(x + c) + ahead + line);
      }
      encode_step<T, Fp8>(x + c, factor, out + c, amax);
    }
    if (c < cols) {  // the ragged end goes through a full-width copy; the zeros in it change no amax
      S tail[step] = {};
      uint8_t codes[step];
      memcpy(tail, x + c, (cols - c) * sizeof(S));
      encode_step<T, Fp8>(tail, factor, codes, amax);
      memcpy(out + c, codes, cols - c);
    }
  }
  return V::reduce_max(amax);
}

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

template <class T>
void add_rows(const void* data, int64_t x_stride, int64_t rows, int64_t cols, float* sums) {
  using S = typename T::storage;
  for (int64_t r = 0; r < rows; ++r) {
    const S* x = static_cast<const S*>(data) + r * x_stride;
    int64_t c = 0;
    for (; c + V::lanes <= cols; c += V::lanes) V::store(sums + c, V::add(V::load(sums + c), V::load(T{}, x + c)));
    if (c < cols) {
      S tail[V::lanes] = {};
      float wide[V::lanes];
      memcpy(tail, x + c, (cols - c) * sizeof(S));
      V::store(wide, V::load(T{}, tail));
      for (int64_t j = 0; c + j < cols; ++j) sums[c + j] += wide[j];
    }
  }
}

}  // namespace

void fill_cast(Kernels& k) {
  k.amax[int(DType::f32)] = amax<F32>;
  k.amax[int(DType::bf16)] = amax<BF16>;
  k.amax[int(DType::f16)] = amax<F16>;
  k.encode[int(DType::f32)][int(Format::e4m3)] = encode<F32, E4M3>;
  k.encode[int(DType::f32)][int(Format::e5m2)] = encode<F32, E5M2>;
  k.encode[int(DType::bf16)][int(Format::e4m3)] = encode<BF16, E4M3>;
  k.encode[int(DType::bf16)][int(Format::e5m2)] = encode<BF16, E5M2>;
  k.encode[int(DType::f16)][int(Format::e4m3)] = encode<F16, E4M3>;
  k.encode[int(DType::f16)][int(Format::e5m2)] = encode<F16, E5M2>;
  k.transpose = transpose;
  k.stream_copy = stream_copy;
  k.add_rows[int(DType::f32)] = add_rows<F32>;
  k.add_rows[int(DType::bf16)] = add_rows<BF16>;
  k.add_rows[int(DType::f16)] = add_rows<F16>;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
