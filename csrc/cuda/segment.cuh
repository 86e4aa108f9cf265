// How a warp reads and writes a segment: up to 256 consecutive columns of one row, 8 per lane.
//
// Aligned: every row of the input starts at a 16-byte address, of q at an 8-byte one, and 8 divides the number of
// columns. Whole chunks, nothing else.
// Unaligned: any address and any number of columns. The input is read in the 16-byte chunks that cover it, each lane
// passes its chunk on to its neighbour, and a shift brings the elements into place; q is written in 8-byte units the
// same way, and the bytes before the first and after the last unit one by one, in one instruction.
#pragma once

#include "cuda/convert.cuh"
#include "cuda/vec.cuh"

namespace transcast::cuda {

constexpr int kSegment = 256;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct Aligned {};
struct Unaligned {};

// 64 bits: rows * stride passes 2^31 in matrices that people train on.
TRANSCAST_HD int64_t offset_of(int64_t row, int64_t stride, int64_t column) { return row * stride + column; }

// Which columns of a segment a lane loads, and which eight it owns once they are FP8 codes. FP32 is loaded in two
// halves of 128 columns, so that a warp reads whole sectors; neighbours then swap four codes (own_codes).
template <class T>
struct Lanes {
  static constexpr bool kHalves = Chunks<T>::kCount == 2;
  TRANSCAST_HD static int column(int lane, int element) {
    return kHalves ? (element >> 2) * 128 + 4 * lane + (element & 3) : 8 * lane + element;
  }
  TRANSCAST_HD static int octet(int lane) { return kHalves ? (lane & 1) * 16 + (lane >> 1) : lane; }
  TRANSCAST_HD static int lane_of(int octet) { return kHalves ? (octet & 15) * 2 + (octet >> 4) : octet; }
};

// An input matrix of a kernel. Unaligned reads stay inside of [data, end).
struct Input {
  Global<const uint8_t> data, end;
  int64_t stride;  // elements
};

__device__ __forceinline__ uint4 shuffle_down(uint4 v, int width) {
  return make_uint4(__shfl_down_sync(kAllLanes, v.x, 1, width), __shfl_down_sync(kAllLanes, v.y, 1, width),
                    __shfl_down_sync(kAllLanes, v.z, 1, width), __shfl_down_sync(kAllLanes, v.w, 1, width));
}

// The aligned chunk at `at`, where it is wanted; element by element where it reaches beyond the matrix.
template <int kBytes>
__device__ __forceinline__ uint4 chunk_inside(const Input& x, Global<const uint8_t> at, bool wanted) {
  const bool inside = at.address >= x.data.address && at.address + 16 <= x.end.address;
  const uint4 chunk = ldg(at.as<const uint4>(), wanted && inside);
  const bool edge = wanted && !inside;
  if (!__any_sync(kAllLanes, edge)) return chunk;
  using Element = std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;
  uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};  // zeros where there is an edge
#pragma unroll
  for (int byte = 0; byte < 16; byte += kBytes) {
    const Global<const uint8_t> element = at + byte;
    const bool ok = edge && element.address >= x.data.address && element.address < x.end.address;
    words[byte / 4] |= uint32_t(ldg(element.as<const Element>(), ok)) << (8 * (byte % 4));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The bytes of a segment on their way: loads are issued for several rows before the first is used.
template <class Access, int kCount>
struct Raw {
  uint4 chunk[kCount];
};
template <int kCount>
struct Raw<Unaligned, kCount> {
  uint4 chunk[kCount];
  uint4 next[kCount];  // of the last lane in a group: the chunk behind
};

// Lane i of a group of kGroup wants the 16 bytes at start + 16 i, of `valid` bytes in all. The aligned chunks that hold
// them:
template <int kGroup, int kBytes>
__device__ __forceinline__ void load_window(const Input& x, Global<const uint8_t> start, int valid, int lane,
                                            uint4& chunk, uint4& next) {
  const int shift = int(reinterpret_cast<uintptr_t>(start.address) & 15), i = lane % kGroup;
  const int first = 16 * i - shift;  // of this lane's chunk, from start
  chunk = chunk_inside<kBytes>(x, start + first, valid > 0 && first < valid);
  next = chunk_inside<kBytes>(x, start + (first + 16), i == kGroup - 1 && shift != 0 && first + 16 < valid);
}

// And the bytes themselves, zeros from byte `valid` on.
template <int kGroup>
__device__ __forceinline__ uint4 window(uint4 chunk, uint4 next, Global<const uint8_t> start, int valid, int lane) {
  const uint32_t shift = uint32_t(reinterpret_cast<uintptr_t>(start.address) & 15);
  const int i = lane % kGroup;
  const uint4 neighbour = shuffle_down(chunk, kGroup);
  return first_bytes(shifted(chunk, i == kGroup - 1 ? next : neighbour, shift), valid - 16 * i);
}

// The lane's eight elements of the segment at `start`; of `valid` columns, zeros beyond.
template <class T>
__device__ __forceinline__ Raw<Aligned, Chunks<T>::kCount> load_segment(Aligned, const Input&,
                                                                        Global<const uint8_t> start, int valid,
                                                                        int lane) {
  Raw<Aligned, Chunks<T>::kCount> raw;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) {
    const int first = Lanes<T>::column(lane, c * Chunks<T>::kElements);
    raw.chunk[c] = ldg((start + first * kElementBytes<T>).template as<const uint4>(), first < valid);
  }
  return raw;
}

template <class T>
__device__ __forceinline__ Raw<Unaligned, Chunks<T>::kCount> load_segment(Unaligned, const Input& x,
                                                                          Global<const uint8_t> start, int valid,
                                                                          int lane) {
  constexpr int kBytes = kElementBytes<T>;
  Raw<Unaligned, Chunks<T>::kCount> raw;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) {
    load_window<32, kBytes>(x, start + 512 * c, valid * kBytes - 512 * c, lane, raw.chunk[c], raw.next[c]);
  }
  return raw;
}

template <class T>
__device__ __forceinline__ Chunks<T> in_place(const Raw<Aligned, Chunks<T>::kCount>& raw, Global<const uint8_t>, int,
                                              int) {
  Chunks<T> elements;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) elements.chunk[c] = raw.chunk[c];
  return elements;
}

template <class T>
__device__ __forceinline__ Chunks<T> in_place(const Raw<Unaligned, Chunks<T>::kCount>& raw,
                                              Global<const uint8_t> start, int valid, int lane) {
  Chunks<T> elements;
#pragma unroll
  for (int c = 0; c < Chunks<T>::kCount; ++c) {
    elements.chunk[c] =
        window<32>(raw.chunk[c], raw.next[c], start + 512 * c, valid * kElementBytes<T> - 512 * c, lane);
  }
  return elements;
}

// From codes of the columns that the lane loaded to codes of its octet.
template <class T>
__device__ __forceinline__ uint2 own_codes(const uint32_t (&codes)[2], int lane) {
  if constexpr (!Lanes<T>::kHalves) return make_uint2(codes[0], codes[1]);
  const bool odd = lane & 1;
  const uint32_t received = __shfl_xor_sync(kAllLanes, odd ? codes[0] : codes[1], 1);
  return odd ? make_uint2(received, codes[1]) : make_uint2(codes[0], received);
}

template <class T>
__device__ __forceinline__ void store_segment(Aligned, Global<uint8_t> start, uint2 codes, int valid, int lane) {
  const int first = 8 * Lanes<T>::octet(lane);
  stg((start + first).template as<uint2>(), codes, first < valid);
}

__device__ __forceinline__ uint64_t joined(uint2 v) { return v.x | uint64_t(v.y) << 32; }

template <class T>
__device__ __forceinline__ void store_segment(Unaligned, Global<uint8_t> start, uint2 codes, int valid, int lane) {
  const int head = int(-reinterpret_cast<uintptr_t>(start.address) & 7);  // bytes before the first unit
  const int octet = Lanes<T>::octet(lane);
  const int neighbour = Lanes<T>::lane_of((octet + 1) & 31);
  const uint2 next = make_uint2(__shfl_sync(kAllLanes, codes.x, neighbour), __shfl_sync(kAllLanes, codes.y, neighbour));
  const uint64_t unit = head == 0 ? joined(codes) : joined(codes) >> (8 * head) | joined(next) << (64 - 8 * head);
  const int first = head + 8 * octet;
  stg((start + first).template as<uint2>(), make_uint2(uint32_t(unit), uint32_t(unit >> 32)), first + 8 <= valid);

  // Lanes 0..7 write the head, 8..15 what follows the last unit.
  const int units = valid > head ? (valid - head) / 8 : 0;
  const int byte = lane < 8 ? lane : head + 8 * units + lane - 8;
  const bool ok = lane < 8 ? byte < head && byte < valid : lane < 16 && byte < valid;
  const int owner = Lanes<T>::lane_of(byte / 8 & 31);
  const uint2 owned = make_uint2(__shfl_sync(kAllLanes, codes.x, owner), __shfl_sync(kAllLanes, codes.y, owner));
  stg(start + byte, uint8_t(joined(owned) >> (8 * (byte & 7))), ok);
}

}  // namespace transcast::cuda
