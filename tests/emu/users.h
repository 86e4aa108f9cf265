// The streams and threads of the host that use words of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace emu {

class Users {
 public:
  // By the calling thread on the current stream. False if a word is another one's: of another stream, whose launches
  // nothing orders, or of another thread, which may launch something else in between. What a thread that has ended had
  // launched on the same stream comes before all that is launched there now.
  bool take(uintptr_t begin, uintptr_t end);

 private:
  struct User {
    int device, stream;
    std::weak_ptr<const char> thread;
  };
  std::unordered_map<uintptr_t, User> of_words_;
};

}  // namespace emu
