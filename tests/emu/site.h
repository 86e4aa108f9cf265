// Where in a kernel something happens. Functions that kernels call take the place as defaulted arguments, which the
// caller's line fills in.
#pragma once

#define EMU_SITE [[maybe_unused]] const char *file = __builtin_FILE(), [[maybe_unused]] int line = __builtin_LINE()

namespace emu {

struct Site {
  const char* file;
  int line;
};

inline bool operator==(Site a, Site b) { return a.line == b.line && a.file == b.file; }
inline bool operator!=(Site a, Site b) { return !(a == b); }

}  // namespace emu
