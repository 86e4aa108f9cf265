// csrc/cuda/vec.cuh for the emulator: the same functions, every access checked before it is made. They are not inlined,
// so that the return address tells one access of a kernel from another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "emu/global_memory.h"
#include "emu/shared_memory.h"

#define EMU_ACCESS __attribute__((noinline))
#define EMU_CALL __builtin_return_address(0)

namespace transcast::cuda {

template <class T>
struct Global {
  T* address;
  TRANSCAST_HD Global operator+(int64_t elements) const { return {address + elements}; }
  template <class U>
  TRANSCAST_HD Global<U> as() const {
    return {reinterpret_cast<U*>(address)};
  }
};

template <class T>
EMU_ACCESS T ldg(Global<const T> p, bool ok, EMU_SITE) {
  T value{};
  emu::load(&value, p.address, sizeof(T), ok, {file, line}, EMU_CALL);
  return value;
}

template <class T>
EMU_ACCESS void stg(Global<T> p, T value, bool ok, EMU_SITE) {
  emu::store(p.address, &value, sizeof(T), ok, {file, line}, EMU_CALL);
}

template <class T>
EMU_ACCESS std::remove_const_t<T> ldcg(Global<T> p, EMU_SITE) {
  std::remove_const_t<T> value{};
  emu::load_coherent(&value, p.address, sizeof(T), {file, line}, EMU_CALL);
  return value;
}

template <class T>
EMU_ACCESS T lds(const T& field, EMU_SITE) {
  T value{};
  emu::load_shared(&value, &field, sizeof(T), {file, line}, EMU_CALL);
  return value;
}

template <class T>
EMU_ACCESS void sts(T& field, T value, EMU_SITE) {
  emu::store_shared(&field, &value, sizeof(T), {file, line}, EMU_CALL);
}

inline uint32_t atomic_max(Global<uint32_t> p, uint32_t value, EMU_SITE) {
  return emu::atomic(p.address, {file, line}, [=](uint32_t old) { return old < value ? value : old; });
}

inline uint32_t atomic_inc(Global<uint32_t> p, uint32_t last, EMU_SITE) {
  return emu::atomic(p.address, {file, line}, [=](uint32_t old) { return old >= last ? 0u : old + 1; });
}

inline uint32_t atomic_exchange(Global<uint32_t> p, uint32_t value, EMU_SITE) {
  return emu::atomic_exchange(p.address, value, {file, line});
}

inline void fence() { emu::fence(); }

}  // namespace transcast::cuda
