#include "cuda/gemm_product.h"

#include <algorithm>
#include <sstream>

namespace transcast::cuda {

uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? 256 : uint32_t(std::min<uintptr_t>(256, address & -address));
}

Key key_of(int device, const Product& p) {
  const Request& r = p.request;
  return {{device, int64_t(r.a), int64_t(r.b), int64_t(r.a_scaling), int64_t(r.b_scaling), int64_t(r.epilogue),
           p.bias != nullptr, r.aux, int64_t(r.aux_dtype), int64_t(r.out), p.m, p.n, p.k, p.a_stride, p.b_stride,
           p.d_stride, p.aux_stride, int64_t(p.bias_dtype), p.fast_accum, p.accumulate, alignment_of(p.a),
           alignment_of(p.b), alignment_of(p.d), alignment_of(p.bias), alignment_of(p.aux), p.d_amax != nullptr,
           p.a_scale_inv != nullptr, p.followed}};
}

std::string describe(const Product& p) {
  const Request& r = p.request;
  const auto format = [](Format f) { return f == Format::e4m3 ? "e4m3" : "e5m2"; };
  std::ostringstream text;
  text << "M=" << p.m << " N=" << p.n << " K=" << p.k << " " << format(r.a) << " x " << format(r.b) << " -> "
       << name_of(r.out) << " epilogue " << name_of(r.epilogue) << " scales " << name_of(r.a_scaling) << "/"
       << name_of(r.b_scaling);
  if (!p.a_scale_inv) text << " left out";
  if (p.bias) text << " bias " << name_of(output_of(p.bias_dtype));
  if (p.aux) text << " aux " << name_of(output_of(r.aux_dtype)) << " stride " << p.aux_stride;
  if (p.followed) text << " then a kernel of transcast";
  text << (p.accumulate ? " accumulate" : "") << (p.fast_accum ? " fast_accum" : "") << " strides " << p.a_stride << "/"
       << p.b_stride << "/" << p.d_stride << " alignments " << alignment_of(p.a) << "/" << alignment_of(p.b) << "/"
       << alignment_of(p.d) << " arch " << r.arch / 10 << "." << r.arch % 10 << " cuBLASLt " << r.library;
  return text.str();
}

}  // namespace transcast::cuda
