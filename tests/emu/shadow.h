// What the running launch has done to each byte of global memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emu/handover.h"

namespace emu {

constexpr size_t kPageBytes = 4096, kWordBytes = 4, kGroup = 64;  // a group's bytes are the bits of a uint64_t

struct Page {
  uint64_t launch;
  uint64_t read[kPageBytes / kGroup];
  uint64_t written[kPageBytes / kGroup];
  uint64_t coherent[kPageBytes / kGroup];  // by atomics or load_coherent: more in the CoherentWord
  Event writer[kPageBytes / kWordBytes];   // the last one of the word's bytes
};
Page& page_of(uintptr_t address);

// The bytes of an access, which lie in one group because accesses are aligned and at most 16 bytes long.
class Bytes {
 public:
  Bytes(uintptr_t address, size_t size)
      : page_(page_of(address)),
        size_(size),
        group_(address % kPageBytes / kGroup),
        mask_(((uint64_t(1) << size) - 1) << address % kGroup),
        writer_(page_.writer + address % kPageBytes / kWordBytes) {}

  bool read() const { return page_.read[group_] & mask_; }
  bool written() const { return page_.written[group_] & mask_; }
  bool coherent() const { return page_.coherent[group_] & mask_; }
  const Event& writer() const { return *writer_; }

  void note_read() { page_.read[group_] |= mask_; }
  void note_coherent() { page_.coherent[group_] |= mask_; }
  void note_written(const Event& event) {
    page_.written[group_] |= mask_;
    for (size_t word = 0; word * kWordBytes < size_; ++word) writer_[word] = event;
  }

 private:
  Page& page_;
  size_t size_, group_;
  uint64_t mask_;
  Event* writer_;
};

// Of a word, by load_coherent.
struct Reading {
  Event event;
  uint32_t bytes;  // one bit for each
};

// A word that threads communicate through.
struct CoherentWord {
  Atomics atomics;
  std::vector<Reading> readings;
  bool read_plainly = false;
};
CoherentWord& coherent_word(uintptr_t address);  // of that byte

void begin_shadow();  // a launch begins: nothing has been done
void count_bytes(uint64_t& read, uint64_t& written);

}  // namespace emu
