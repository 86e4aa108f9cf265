// Where the ops of this library are registered. The same files are built for each library: _C defines the schemas and
// serves CPU tensors, _cuda serves CUDA tensors under those schemas.
#pragma once

#include <torch/csrc/stable/library.h>

#if !defined(TRANSCAST_NAMESPACE)
#define TRANSCAST_NAMESPACE transcast
#endif
#if !defined(TRANSCAST_KEY)
#define TRANSCAST_KEY CPU
#endif

#define TRANSCAST_OPS(m) STABLE_TORCH_LIBRARY_IMPL(TRANSCAST_NAMESPACE, TRANSCAST_KEY, m)
#if defined(TRANSCAST_NO_SCHEMAS)
#define TRANSCAST_SCHEMAS(m) \
  [[maybe_unused]] static void schemas_of_another_library(torch::stable::detail::StableLibrary& m)
#else
#define TRANSCAST_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(TRANSCAST_NAMESPACE, m)
#endif
