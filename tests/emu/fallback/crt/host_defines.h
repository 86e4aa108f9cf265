// The qualifiers of CUDA's type headers, for a compiler that is not nvcc. Found only where CUDA's own file is missing:
// some packages have cuda_fp8.h and no crt/.
#pragma once

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __annotate__(a)
#define __location__(a)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __CUDA_ARCH_HAS_FEATURE__(feature) __CUDA_ARCH_FEAT_##feature
