// amax, encode and column sums. Compiled once per instruction set (see simd.h).
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
  k.add_rows[int(DType::f32)] = add_rows<F32>;
  k.add_rows[int(DType::bf16)] = add_rows<BF16>;
  k.add_rows[int(DType::f16)] = add_rows<F16>;
}

}  // namespace transcast::cpu::TRANSCAST_ISA
