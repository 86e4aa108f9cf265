#include "emu/shadow.h"

#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

namespace emu {
namespace {

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
std::vector<Page*> touched;
std::unordered_map<uintptr_t, CoherentWord> coherent_words;
uint64_t launch_number;

// Neighbouring threads touch the same few pages in turn.
struct Recent {
  uintptr_t number;
  Page* page;
};
Recent recent[1024];

}  // namespace

Page& page_of(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  Recent& slot = recent[number % 1024];
  if (slot.number != number || !slot.page) {
    std::unique_ptr<Page>& known = pages[number];
    if (!known) known = std::make_unique<Page>();
    slot = {number, known.get()};
  }
  Page& page = *slot.page;
  if (page.launch != launch_number) {
    page.launch = launch_number;
    memset(page.read, 0, sizeof page.read);
    memset(page.written, 0, sizeof page.written);
    memset(page.coherent, 0, sizeof page.coherent);
    touched.push_back(&page);
  }
  return page;
}

CoherentWord& coherent_word(uintptr_t address) { return coherent_words[address / kWordBytes]; }

void begin_shadow() {
  constexpr size_t kMaxPages = 16384;  // of 14 KB, kept from launch to launch
  if (pages.size() > kMaxPages) {
    pages.clear();
    memset(recent, 0, sizeof recent);
  }
  ++launch_number;
  touched.clear();
  coherent_words.clear();
}

void count_bytes(uint64_t& read, uint64_t& written) {
  read = written = 0;
  for (const Page* page : touched) {
    for (uint64_t bits : page->read) read += uint64_t(__builtin_popcountll(bits));
    for (uint64_t bits : page->written) written += uint64_t(__builtin_popcountll(bits));
  }
}

}  // namespace emu
