// What kernels did wrong. Faults are collected while a launch runs and leave it as one error.
#pragma once

#include <sstream>
#include <string>

#include "emu/site.h"

namespace emu {

// Something the running thread did. `kind` is one of a fixed set of phrases: a fault of the same kind at the same place
// is counted, not repeated.
void add_fault(Site, const char* kind, const std::string& detail);

template <class... Parts>
void fault(Site site, const char* kind, const Parts&... parts) {
  std::ostringstream detail;
  (detail << ... << parts);
  add_fault(site, kind, detail.str());
}

bool faulted();

// All of them in one text, which starts with the kernel's name; the collection is empty then.
std::string take_faults(const std::string& kernel);

// "finish.cuh:63"
std::string name_of(Site);

}  // namespace emu
