// Names of this library's own functions.
#pragma once

#include <string>

namespace emu {

// The kernel's name and template arguments, without namespaces: "rows_kernel<Plain<BF16>, Aligned, E4M3>".
std::string name_of_kernel(const void* kernel);

}  // namespace emu
