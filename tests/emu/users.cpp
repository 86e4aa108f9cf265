#include "emu/users.h"

#include "emu/settings.h"

namespace emu {
namespace {

// Nobody else holds it: it goes when the thread ends. Before the library's objects of that thread, which are older
// because the thread gets its memory from them.
const std::shared_ptr<const char>& this_thread() {
  thread_local const auto thread = std::make_shared<const char>();
  return thread;
}

}  // namespace

bool Users::take(uintptr_t begin, uintptr_t end) {
  constexpr uintptr_t kWord = 4;
  const User now{settings.device, settings.stream, this_thread()};
  for (uintptr_t word = begin / kWord; word * kWord < end; ++word) {
    User& user = of_words_.try_emplace(word, now).first->second;
    if (user.device != now.device || user.stream != now.stream) return false;
    if (const auto thread = user.thread.lock(); thread && thread != this_thread()) return false;
    user = now;
  }
  return true;
}

}  // namespace emu
