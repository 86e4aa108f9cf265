// The emulator as tests see it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "emu/cublaslt.h"
#include "emu/cublaslt_module.h"
#include "emu/example.h"
#include "emu/global_memory.h"
#include "emu/runtime.h"
#include "emu/schedule.h"
#include "emu/settings.h"
#include "emu/traffic.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

void configure(const std::string& schedule, uint64_t seed, int multiprocessors, int poison, bool races,
               bool capturing, bool another_captures, const std::vector<int64_t>& blocks) {
  emu::set_multiprocessors(multiprocessors);
  emu::set_schedule(emu::schedule_of(schedule), seed);
  emu::settings.poison = uint8_t(poison);
  emu::settings.races = races;
  emu::settings.capturing = capturing;
  emu::settings.another_captures = another_captures;
  emu::settings.blocks = blocks;
}

py::dict traffic_of(const emu::Launch& launch, emu::Access access) {
  const emu::GlobalTraffic& global = launch.global[int(access)];
  const emu::SharedTraffic& shared = launch.shared[int(access)];
  return py::dict("sectors"_a = global.sectors, "uniform"_a = global.uniform, "bytes"_a = global.bytes,
                  "widths"_a = global.widths, "first"_a = global.first - global.lowest,
                  "last"_a = global.last - global.lowest, "wavefronts"_a = shared.wavefronts,
                  "wavefronts_minimum"_a = shared.minimum);
}

py::tuple triple(const uint32_t (&of)[3]) { return py::make_tuple(of[0], of[1], of[2]); }

py::list launches() {
  py::list all;
  for (const emu::Launch& launch : emu::launches) {
    all.append(py::dict("kernel"_a = launch.kernel, "grid"_a = triple(launch.grid), "block"_a = triple(launch.block),
                        "shared_bytes"_a = launch.shared_bytes,
                        "read"_a = traffic_of(launch, emu::Access::read),
                        "written"_a = traffic_of(launch, emu::Access::write), "barriers"_a = launch.barriers,
                        "atomics"_a = launch.atomics));
  }
  return all;
}

emu::Numbers run_example(const std::string& name, const emu::Numbers& arguments) {
  return emu::examples().at(name)(arguments);
}

std::vector<std::string> example_names() {
  std::vector<std::string> names;
  for (const auto& [name, example] : emu::examples()) names.push_back(name);
  return names;
}

void reset() {
  emu::settings = {};
  emu::set_schedule(emu::Schedule::forward, 0);
  emu::launches.clear();
  emu::forget_memory_of_op();  // which an op that was refused leaves behind
  emu::reset_runtime();
  emu::lt::reset();
}

}  // namespace

PYBIND11_MODULE(_emu, m) {
  m.doc() = "CUDA kernels on the CPU: torch.ops.transcast_emu, and what they did.";
  m.def("configure", &configure, py::kw_only(), "schedule"_a = "forward", "seed"_a = 0, "multiprocessors"_a = 4,
        "poison"_a = 0xa5, "races"_a = true, "capturing"_a = false,
        "another_captures"_a = false, "blocks"_a = std::vector<int64_t>(),
        "For launches from now on; what is not named gets its default. schedule: forward, reverse, random. blocks: the "
        "only ones to run, negative ones counted from behind the last.");
  m.def("count", [](bool on) { emu::settings.count = on; }, "on"_a, "Keep what each launch moves, for launches().");
  m.def("launches", &launches, "What was counted since reset(), in order: one dict for each launch.");
  m.def("set_stream", [](int stream) { emu::settings.stream = stream; }, "stream"_a,
        "Makes another stream current; 0 is the first one.");
  m.def("last_error", [] { return int(emu::kept_error()); }, "What the runtime keeps for cudaGetLastError.");
  m.def("calls", [] { return emu::calls(); }, "How often each function of the runtime was called since reset().");
  m.def("fail_next", &emu::fail_next, "function"_a, "status"_a,
        "The next call of a runtime function fails with this cudaError_t.");
  m.def("run_example", &run_example, "name"_a, "arguments"_a, "Runs one of tests/emu/kernels, returns its numbers.");
  m.def("example_names", &example_names);
  add_cublaslt(m);
  m.def("reset", &reset, "All settings to their defaults; forgets launches, calls, failures to come.");
}
