// The dtypes that kernels know, and the one place that branches on them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TRANSCAST_HD __host__ __device__ __forceinline__
#else
// Always inlined: the same header is compiled for several instruction sets, and a shared out-of-line copy built for
// a newer one must never be what an older machine runs.
#define TRANSCAST_HD inline __attribute__((always_inline))
#endif

namespace transcast {

enum class DType : int { f32, bf16, f16 };
enum class Format : int { e4m3, e5m2 };

// High-precision element types, by their storage.
struct F32 {
  using storage = uint32_t;
  static constexpr DType dtype = DType::f32;
};
struct BF16 {
  using storage = uint16_t;
  static constexpr DType dtype = DType::bf16;
};
struct F16 {
  using storage = uint16_t;
  static constexpr DType dtype = DType::f16;
};

// FP8 formats. Constants are FP32 bit patterns of the format's own values.
struct E4M3 {
  static constexpr Format format = Format::e4m3;
  static constexpr int mantissa_bits = 3;
  static constexpr uint32_t max_bits = 0x43e00000u;         // 448
  static constexpr uint32_t min_normal_bits = 0x3c800000u;  // 2^-6
  static constexpr float max = 448.0f;
};
struct E5M2 {
  static constexpr Format format = Format::e5m2;
  static constexpr int mantissa_bits = 2;
  static constexpr uint32_t max_bits = 0x47600000u;         // 57344
  static constexpr uint32_t min_normal_bits = 0x38800000u;  // 2^-14
  static constexpr float max = 57344.0f;
};

constexpr size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

template <class Visitor>
inline auto visit(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::bf16: return visitor(BF16{});
    case DType::f16: return visitor(F16{});
    default: return visitor(F32{});
  }
}

template <class Visitor>
inline auto visit(Format format, Visitor&& visitor) {
  return format == Format::e4m3 ? visitor(E4M3{}) : visitor(E5M2{});
}

}  // namespace transcast
