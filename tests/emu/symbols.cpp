// Kernels are local symbols, which the dynamic loader does not know: they are looked up in the file's own symbol table.
#include "emu/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <vector>

namespace emu {
namespace {

std::map<uintptr_t, std::string> read_functions(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  std::map<uintptr_t, std::string> functions;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = bytes.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbol = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    for (size_t n = sections[i].sh_size / sizeof *symbol; n > 0; --n, ++symbol) {
      if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC) functions[symbol->st_value] = names + symbol->st_name;
    }
  }
  return functions;
}

std::string demangled(const std::string& symbol) {
  int status;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string name = text ? text : symbol;
  free(text);
  return name;
}

// "void a::b<a::T>(a::U, int)" -> "b<T>"
std::string shortened(std::string name) {
  int depth = 0;
  size_t end = name.size();
  while (end > 0 && (depth > 0 || end == name.size())) {  // the parameter list is what the last ')' closes
    --end;
    depth += name[end] == ')' ? 1 : name[end] == '(' ? -1 : 0;
  }
  name.resize(end);
  name = std::regex_replace(name, std::regex("\\(anonymous namespace\\)::"), "");
  name = std::regex_replace(name, std::regex("([A-Za-z_][A-Za-z_0-9]*::)+"), "");
  return std::regex_replace(name, std::regex("^void "), "");
}

}  // namespace

std::string name_of_kernel(const void* kernel) {
  static const auto library = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&name_of_kernel), &info);
    return info;
  }();
  static const auto functions = read_functions(library.dli_fname);
  static std::map<const void*, std::string> known;
  std::string& name = known[kernel];
  if (!name.empty()) return name;
  const auto offset = reinterpret_cast<uintptr_t>(kernel) - reinterpret_cast<uintptr_t>(library.dli_fbase);
  const auto found = functions.find(offset);
  return name = found == functions.end() ? "of unknown name" : shortened(demangled(found->second));
}

}  // namespace emu
