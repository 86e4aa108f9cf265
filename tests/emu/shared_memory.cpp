#include "emu/shared_memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "emu/block.h"
#include "emu/faults.h"
#include "emu/settings.h"
#include "emu/traffic.h"

namespace emu {
namespace {

// The last accesses to a word, or to a byte of a word that is not used as one. Times of the block's last barrier tell
// whether a barrier lies between an access and this one.
struct Cell {
  uint32_t write_barrier, write_time, read_barrier, read_time;
  uint32_t readers;      // lanes of one warp
  uint16_t writer;       // thread
  uint16_t reader_warp;  // kSeveral: more than one
};
constexpr uint16_t kSeveral = 0xffff;
constexpr size_t kWord = 4;

alignas(128) unsigned char memory[kMaxSharedBytes];
size_t memory_bytes;
Cell words[kMaxSharedBytes / kWord];
uint16_t split[kMaxSharedBytes / kWord];  // 1 + index into pieces, where bytes of a word are accessed on their own
std::vector<std::array<Cell, kWord>> pieces;
std::vector<size_t> split_words;

const unsigned char* name_of_memory() {
  static void* const reserved = [] {
    void* address = mmap(nullptr, 2 * kMaxSharedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    return address;
  }();
  return static_cast<const unsigned char*>(reserved);
}

bool after_writer(const Cell& cell) {
  if (cell.write_barrier != last_barrier() || cell.writer == running_thread()) return true;
  return cell.writer / kWarp == running_thread() / kWarp && after_in_warp(cell.writer, cell.write_time);
}

bool after_readers(const Cell& cell) {
  if (cell.read_barrier != last_barrier() || cell.readers == 0) return true;
  if (cell.reader_warp != running_thread() / kWarp) return false;
  for (uint32_t left = cell.readers & ~(1u << lane()); left; left &= left - 1) {
    if (!after_in_warp(__builtin_ctz(left), cell.read_time)) return false;
  }
  return true;
}

void note_read(Cell& cell, size_t offset, Site site) {
  if (cell.write_barrier < block_began()) {
    fault(site, "shared memory read before it is written", "byte ", offset);
  } else if (!after_writer(cell)) {
    fault(site, "shared race", "thread ", cell.writer, " wrote byte ", offset,
          " and nothing orders this read after it");
  }
  const auto warp = uint16_t(running_thread() / kWarp);
  const uint32_t self = 1u << lane();
  const bool first = cell.read_barrier != last_barrier() || cell.readers == 0;
  if (first || (cell.reader_warp == warp && after_readers(cell))) {
    cell.read_barrier = last_barrier();
    cell.read_time = warp_time();
    cell.readers = self;
    cell.reader_warp = warp;
  } else if (cell.reader_warp == warp) {
    cell.readers |= self;
    if (warp_time() > cell.read_time) cell.read_time = warp_time();
  } else {
    cell.reader_warp = kSeveral;
  }
}

void note_write(Cell& cell, size_t offset, Site site) {
  if (!after_writer(cell)) {
    fault(site, "shared race", "thread ", cell.writer, " wrote byte ", offset,
          " and nothing orders this write after it");
  } else if (!after_readers(cell)) {
    fault(site, "shared race", "byte ", offset, " was read and nothing orders this write after it");
  }
  cell.write_barrier = last_barrier();
  cell.write_time = warp_time();
  cell.writer = uint16_t(running_thread());
  cell.readers = 0;
}

Cell* pieces_of(size_t word) {
  if (!split[word]) {
    pieces.emplace_back();
    pieces.back().fill(words[word]);
    split[word] = uint16_t(pieces.size());
    split_words.push_back(word);
  }
  return pieces[split[word] - 1].data();
}

template <class Note>
void visit(size_t offset, size_t size, Note note) {
  for (size_t end = offset + size; offset < end;) {
    const size_t word = offset / kWord;
    if (offset % kWord == 0 && end - offset >= kWord && !split[word]) {
      note(words[word], offset);
      offset += kWord;
    } else {
      note(pieces_of(word)[offset % kWord], offset);
      ++offset;
    }
  }
}

// Where the field lies, or nullptr after a fault.
unsigned char* locate(const void* field, size_t size, Site site) {
  const ptrdiff_t offset = static_cast<const unsigned char*>(field) - name_of_memory();
  if (offset < 0 || size_t(offset) + size > memory_bytes) {
    fault(site, "shared access outside of the struct", "bytes ", offset, " to ", offset + ptrdiff_t(size), " of ",
          memory_bytes);
    return nullptr;
  }
  if (size_t(offset) % size != 0) {
    fault(site, "misaligned shared access", size, " bytes at byte ", offset);
    return nullptr;
  }
  return memory + offset;
}

}  // namespace

void begin_shared_launch(size_t bytes) { memory_bytes = bytes; }

void begin_shared_block() {
  memset(memory, settings.poison, memory_bytes);
  for (size_t word : split_words) split[word] = 0;
  split_words.clear();
  pieces.clear();
}

void* shared_struct(size_t bytes, Site site) {
  if (bytes > memory_bytes) {
    fault(site, "the shared struct is larger than the launch allows", bytes, " > ", memory_bytes, " bytes");
  }
  return const_cast<unsigned char*>(name_of_memory());
}

void load_shared(void* value, const void* field, size_t size, Site site, const void* call) {
  const unsigned char* place = locate(field, size, site);
  if (!place) return;
  const auto offset = size_t(place - memory);
  if (settings.races) visit(offset, size, [=](Cell& cell, size_t at) { note_read(cell, at, site); });
  if (settings.count) note_shared_access(call, Access::read, offset, size);
  memcpy(value, place, size);
}

void store_shared(void* field, const void* value, size_t size, Site site, const void* call) {
  unsigned char* place = locate(field, size, site);
  if (!place) return;
  const auto offset = size_t(place - memory);
  if (settings.races) visit(offset, size, [=](Cell& cell, size_t at) { note_write(cell, at, site); });
  if (settings.count) note_shared_access(call, Access::write, offset, size);
  memcpy(place, value, size);
}

}  // namespace emu
