#include "emu/example.h"

namespace emu {

std::map<std::string, Example>& examples() {
  static std::map<std::string, Example> all;
  return all;
}

}  // namespace emu
