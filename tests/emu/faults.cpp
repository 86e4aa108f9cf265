#include "emu/faults.h"

#include <cstring>
#include <vector>

#include "emu/block.h"

namespace emu {
namespace {

struct Fault {
  Site site;
  const char* kind;
  std::string text;
  int more;
};

std::vector<Fault> faults;

}  // namespace

std::string name_of(Site site) {
  const char* slash = strrchr(site.file, '/');
  return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

void add_fault(Site site, const char* kind, const std::string& detail) {
  for (Fault& known : faults) {
    if (known.kind != kind || known.site != site) continue;
    ++known.more;
    return;
  }
  std::ostringstream text;
  text << kind << (detail.empty() ? "" : ": ") << detail << " (" << name_of(site) << ", block " << blockIdx.x << ","
       << blockIdx.y << "," << blockIdx.z << ", thread " << running_thread() << ")";
  faults.push_back({site, kind, text.str(), 0});
}

bool faulted() { return !faults.empty(); }

std::string take_faults(const std::string& kernel) {
  std::ostringstream text;
  text << "emulated kernel " << kernel << ":";
  for (const Fault& fault : faults) {
    text << "\n  " << fault.text;
    if (fault.more) text << " and " << fault.more << " more of this kind there";
  }
  faults.clear();
  return text.str();
}

}  // namespace emu
