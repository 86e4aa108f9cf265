// The Python side of what is no tensor op. Compiled into _C, and with TRANSCAST_CUDA_BACKEND into _cuda.
// The TRANSCAST_* strings are set in CMakeLists.txt.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#ifdef TRANSCAST_CUDA_BACKEND
#include "cuda/device.h"
#include "cuda/gemm_plan.h"
#else
#include "cpu/kernels.h"
#endif

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

#ifdef TRANSCAST_CUDA_BACKEND

py::dict device_facts() {
  const transcast::cuda::DeviceFacts facts = transcast::cuda::device_facts();
  py::list devices;
  for (const auto& device : facts.devices) {
    devices.append(py::dict("name"_a = device.name,
                            "capability"_a = py::make_tuple(device.capability_major, device.capability_minor),
                            "multiprocessors"_a = device.multiprocessors,
                            "memory_bytes"_a = device.memory_bytes));
  }
  return py::dict("compiled_with"_a = facts.compiled_with, "runtime_version"_a = facts.runtime_version,
                  "driver_version"_a = facts.driver_version, "unavailable"_a = facts.unavailable,
                  "devices"_a = devices);
}

py::list gemm_plans() {
  py::list plans;
  const std::vector<transcast::cuda::PlanFacts> all = [] {
    const py::gil_scoped_release meanwhile;  // a thread that runs a plan may be waiting for the interpreter
    return transcast::cuda::plans();
  }();
  for (const auto& plan : all) {
    plans.append(py::dict("device"_a = plan.device, "description"_a = plan.description,
                          "candidates"_a = plan.candidates, "chosen"_a = plan.chosen,
                          "workspace_bytes"_a = plan.workspace_bytes, "calls"_a = plan.calls));
  }
  return plans;
}

py::list gemm_support() {
  py::list rows;
  for (const auto& rule : transcast::cuda::support_table()) {
    rows.append(py::dict("archs"_a = rule.archs, "library"_a = rule.library, "scaling"_a = rule.scaling,
                         "operands"_a = rule.operands, "epilogues"_a = rule.epilogues, "outputs"_a = rule.outputs,
                         "way"_a = rule.way, "why"_a = rule.why));
  }
  return rows;
}

py::list gemm_scalings(int arch) {
  py::list rows;
  for (const auto& one : transcast::cuda::scaling_support(arch, transcast::cuda::library_version())) {
    rows.append(py::make_tuple(one.scaling, one.way, one.why));
  }
  return rows;
}

#else

py::dict build_info() {
  return py::dict("version"_a = TRANSCAST_VERSION, "compiler"_a = TRANSCAST_COMPILER,
                  "flags"_a = TRANSCAST_FLAGS, "torch"_a = TRANSCAST_TORCH_VERSION,
                  "stable_abi"_a = TRANSCAST_STABLE_ABI, "isas"_a = transcast::cpu::compiled_isas(),
                  "isa_in_use"_a = transcast::cpu::kernels().name, "cuda"_a = TRANSCAST_CUDA_VERSION,
                  "cuda_archs"_a = TRANSCAST_CUDA_ARCHS, "cuda_note"_a = TRANSCAST_CUDA_NOTE);
}

#endif

}  // namespace

#ifdef TRANSCAST_CUDA_BACKEND
PYBIND11_MODULE(_cuda, m) {
  m.def("device_facts", &device_facts, "What the CUDA runtime says of itself and of this machine.");
  m.def("gemm_plans", &gemm_plans, "The GEMM plans in use, most recently used first.");
  m.def("gemm_support", &gemm_support, "Which GEMMs cuBLASLt computes, which it leaves to us, which nobody does.");
  m.def("gemm_scalings", &gemm_scalings, "arch"_a,
        "(scaling, way, why) for 89, 90, ... with the library that is loaded.");
}
#else
PYBIND11_MODULE(_C, m) {
  m.def("build_info", &build_info, "What this library was built with, and the CPU path in use.");
}
#endif
