// Errors of wrong arguments: op, argument, what was expected, what came. std::invalid_argument arrives in Python as
// a ValueError with just this text.
#pragma once

#include <sstream>
#include <stdexcept>

namespace transcast {

template <class... Parts>
[[noreturn]] inline void refuse(const char* op, const char* argument, const Parts&... parts) {
  std::ostringstream message;
  message << "transcast::" << op << ": " << argument << " ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

template <class... Parts>
inline void check(bool ok, const char* op, const char* argument, const Parts&... parts) {
  if (!ok) refuse(op, argument, parts...);
}

}  // namespace transcast
