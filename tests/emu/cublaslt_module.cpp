// GEMM plans and the stand-in for cuBLASLt, as tests see them.
#include "emu/cublaslt_module.h"

#include <pybind11/stl.h>

#include "cuda/gemm_plan.h"
#include "cuda/gemm_support.h"
#include "emu/cublaslt.h"
#include "emu/runtime.h"
#include "emu/settings.h"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace transcast;

namespace {

void set_device(int device) {
  if (device < 0 || device >= emu::kDevices) throw std::invalid_argument("no such device");
  emu::settings.device = device;
}

void configure(size_t version, int refuse_candidates, bool refuse_all, std::set<uint32_t> refuse_epilogues) {
  emu::lt::settings = {version, refuse_candidates, refuse_all, std::move(refuse_epilogues)};
  cuda::clear_plans();
}

py::list plans() {
  py::list all;
  for (const cuda::PlanFacts& plan : cuda::plans()) {
    all.append(py::dict("device"_a = plan.device, "description"_a = plan.description, "candidates"_a = plan.candidates,
                        "chosen"_a = plan.chosen, "workspace_bytes"_a = plan.workspace_bytes, "calls"_a = plan.calls));
  }
  return all;
}

// {number: (bytes, value)}
py::dict dict_of(const std::vector<emu::lt::Attributes::Set>& attributes) {
  py::dict all;
  for (const auto& one : attributes) {
    all[py::int_(one.number)] =
        py::make_tuple(one.bytes, py::bytes(reinterpret_cast<const char*>(&one.word), one.bytes));
  }
  return all;
}

py::list record() {
  py::list all;
  for (const emu::lt::Recorded& one : emu::lt::record) {
    py::list layouts;
    for (const auto& layout : one.layouts) layouts.append(dict_of(layout));
    all.append(py::dict("descriptor"_a = dict_of(one.op), "layouts"_a = layouts,
                        "preference"_a = dict_of(one.preference)));
  }
  return all;
}

int set_attribute(const std::string& object, int number, const std::string& value) {
  emu::lt::Descriptor descriptor(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  emu::lt::Layout layout(CUDA_R_8F_E4M3, 16, 16, 16);
  emu::lt::Preference preference;
  emu::lt::Attributes& one = object == "descriptor" ? static_cast<emu::lt::Attributes&>(descriptor)
                             : object == "layout"   ? static_cast<emu::lt::Attributes&>(layout)
                                                    : preference;
  return one.set(number, value.data(), value.size());
}

template <class Object>
Object set_all(Object object, const py::handle& attributes) {
  for (const auto& [number, value] : attributes.cast<std::map<int, std::pair<size_t, std::string>>>()) {
    object.set(number, value.second.data(), value.first);
  }
  return object;
}

py::tuple judged(const py::dict& question, int arch) {
  const auto op = set_all(emu::lt::Descriptor(CUBLAS_COMPUTE_32F, CUDA_R_32F), question["descriptor"]);
  std::vector<emu::lt::Layout> layouts;
  for (const py::handle one : question["layouts"]) {
    layouts.push_back(set_all(emu::lt::Layout(CUDA_R_32F, 1, 1, 1), one));
  }
  const emu::lt::Question asked{op, layouts.at(0), layouts.at(1), layouts.at(2), layouts.at(3)};
  const emu::lt::Verdict verdict = emu::lt::judge(asked, arch);
  return py::make_tuple(int(verdict.status), verdict.why);
}

std::string support(const std::string& a, const std::string& b, const std::string& epilogue, bool bias, bool aux,
                    const std::string& aux_dtype, const std::string& out, const std::string& a_scaling,
                    const std::string& b_scaling, int arch, int library) {
  const auto format = [](const std::string& name) { return name == "float8_e4m3fn" ? Format::e4m3 : Format::e5m2; };
  const auto output = [](const std::string& name) {
    for (int i = 0; i < 5; ++i) {
      if (cuda::name_of(cuda::Output(i)) == name) return cuda::Output(i);
    }
    throw std::invalid_argument(name);
  };
  cuda::Request request{};
  request.a = format(a), request.b = format(b);
  while (cuda::name_of(request.epilogue) != epilogue) request.epilogue = Epilogue(int(request.epilogue) + 1);
  while (cuda::name_of(request.a_scaling) != a_scaling) request.a_scaling = Scaling(int(request.a_scaling) + 1);
  while (cuda::name_of(request.b_scaling) != b_scaling) request.b_scaling = Scaling(int(request.b_scaling) + 1);
  request.bias = bias, request.aux = aux;
  request.aux_dtype = aux ? DType(int(output(aux_dtype))) : DType::f32;
  request.out = output(out);
  request.arch = arch, request.library = library;
  return cuda::name_of(cuda::support(request).way);
}

py::list support_table() {
  py::list rows;
  for (const auto& rule : cuda::support_table()) {
    rows.append(py::make_tuple(rule.archs, rule.library, rule.scaling, rule.operands, rule.epilogues, rule.outputs,
                               rule.way, rule.why));
  }
  return rows;
}

py::list scalings(int arch, int library) {
  py::list rows;
  for (const auto& one : cuda::scaling_support(arch, library)) {
    rows.append(py::make_tuple(one.scaling, one.way, one.why));
  }
  return rows;
}

}  // namespace

void add_cublaslt(py::module_& m) {
  m.def("set_device", &set_device, "device"_a,
        "Makes a device current: 0 to 3 are of compute capability 9.0, 8.9, 10.0, 12.0, those up to 7 of 9.0.");
  m.def("configure_cublaslt", &configure, py::kw_only(), "version"_a = size_t(CUBLAS_VERSION),
        "refuse_candidates"_a = 0, "refuse_all"_a = false, "refuse_epilogues"_a = std::set<uint32_t>{},
        "What is not named gets its default; plans are forgotten. version: of the library. refuse_candidates: "
        "cublasLtMatmul refuses the first n algorithms. refuse_all, refuse_epilogues: what has none.");
  m.def("gemm_plans", &plans, "The plans, most recently used first.");
  m.def("clear_gemm_plans", &cuda::clear_plans, "Forgets all plans.");
  m.def("gemm_support_table", &support_table, "The support table, row by row.");
  m.def("gemm_scalings", &scalings, "arch"_a, "library"_a, "What transcast.info says of each granularity of scales.");
  m.def("gemm_support", &support, "How the support table says that a product is computed.");
  m.def("cublaslt_refusals", [] { return emu::lt::refusals; }, "The heuristic's refusals since reset(), in words.");
  m.def("cublaslt_record", &record, "Each distinct question to the heuristic: {number: (size, bytes)} of its objects.");
  m.def("cublaslt_judge", &judged, "question"_a, "arch"_a,
        "What the rules say of a question like those of cublaslt_record(): status, reason.");
  m.def("cublaslt_set", &set_attribute, "object"_a, "number"_a, "value"_a,
        "The status of setting an attribute of a fresh descriptor, layout or preference.");
}
