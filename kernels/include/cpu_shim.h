// CUDA's language for a C++ compiler: keywords, vector types, built-in variables, warp functions, atomics, and the export
// of each kernel to Python. How blocks and threads run is in cpu/scheduler.h.
//
// Rules for a kernel that runs in both worlds: it includes common.cuh only (or mma.cuh, which builds on it); `extern "C"
// __global__ void name(...)` with pointers, 32-bit integers and floats as arguments; shared arrays inside functions;
// dynamic shared memory through DYNAMIC_SHARED; __constant__ arrays outside of namespaces; no assumption of zeroed shared
// memory or of warps in lockstep; every thread of a block reaches every __syncthreads (none returns before); local arrays
// below 8 KB; PTX only in helpers with a host twin.
#pragma once

#ifdef CPU_SHIM_LIST_KERNELS
// A preprocessor pass that finds the kernels' names: nothing else is needed, so nothing else is read.
#define __launch_bounds__(...)
#define WIDE_VECTORS
#else

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ---- Keywords

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

// For a kernel whose innermost loop is as wide as the widest vectors: these are used there; and how many floats one holds.
// Clang does not know how to widen those of one function.
#if defined(__clang__) || !defined(__AVX__)
#define WIDE_VECTORS
#define VECTOR_FLOATS 4
#elif defined(__AVX512F__)
#define WIDE_VECTORS __attribute__((target("prefer-vector-width=512")))
#define VECTOR_FLOATS 16
#else
#define WIDE_VECTORS __attribute__((target("prefer-vector-width=256")))
#define VECTOR_FLOATS 8
#endif

// A shared array exists once per OS thread, because an OS thread runs one block at a time. The checked builds run on one
// OS thread and put the arrays into a section of their own: compilers guard static arrays against overruns but never
// thread-local ones, and the section can be filled with NaN before every block.
#ifdef CPU_SHIM_CHECKED
#define __shared__ static __attribute__((section("cuda_shared")))
#else
#define __shared__ static thread_local
#endif

// ---- Vector types. They may alias: kernels read float arrays through float4 pointers.

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define CPU_VECTOR2(type, name)                                     \
  struct __attribute__((aligned(2 * sizeof(type)), may_alias)) name { \
    type x, y;                                                      \
  };                                                                \
  static inline name make_##name(type x, type y) { return {x, y}; }
#define CPU_VECTOR4(type, name)                                     \
  struct __attribute__((aligned(4 * sizeof(type)), may_alias)) name { \
    type x, y, z, w;                                                \
  };                                                                \
  static inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
CPU_VECTOR2(float, float2)
CPU_VECTOR4(float, float4)
CPU_VECTOR2(int, int2)
CPU_VECTOR4(int, int4)
CPU_VECTOR2(unsigned, uint2)
CPU_VECTOR4(unsigned, uint4)
CPU_VECTOR4(unsigned char, uchar4)
#undef CPU_VECTOR2
#undef CPU_VECTOR4

#include "cpu/scheduler.h"

// ---- Built-in variables

#define threadIdx (::cpu::current_thread->index)
#define blockIdx (::cpu::current_block->index)
#define blockDim (::cpu::current_block->dim)
#define gridDim (::cpu::current_block->grid)
static constexpr int warpSize = 32;

#include "cpu/intrinsics.h"

// ---- Export to Python: cpu_launch_<kernel> and cpu_signature_<kernel>

namespace cpu {

template <class A>
struct ArgumentKind;  // a kernel argument is a pointer, a 32-bit integer, a float or a Walk (walk.cuh)
template <class A>
struct ArgumentKind<A*> {
  static constexpr char letter = 'p';
};
template <>
struct ArgumentKind<int> {
  static constexpr char letter = 'i';
};
template <>
struct ArgumentKind<unsigned> {
  static constexpr char letter = 'i';
};
template <>
struct ArgumentKind<float> {
  static constexpr char letter = 'f';
};
template <class A>
struct ArgumentKind<const A> : ArgumentKind<A> {};

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <auto KERNEL>
struct Export;
template <class... A, void (*KERNEL)(A...)>
struct Export<KERNEL> {
  static constexpr char signature[] = {ArgumentKind<A>::letter..., '\0'};
  // `arguments` as cuLaunchKernel takes them: one pointer to each value.
  static void call(void** arguments) { call(arguments, typename MakeIndices<sizeof...(A)>::type()); }
  template <size_t... I>
  static void call([[maybe_unused]] void** arguments, Indices<I...>) {
    KERNEL(*static_cast<A*>(arguments[I])...);
  }
};

}  // namespace cpu

#define CPU_EXPORT(kernel)                                                                                       \
  extern "C" __attribute__((visibility("default"))) int cpu_launch_##kernel(const ::cpu::Launch* launch) {       \
    return ::cpu::run(*launch, &::cpu::Export<&kernel>::call);                                                   \
  }                                                                                                              \
  extern "C" __attribute__((visibility("default"))) const char* cpu_signature_##kernel() {                       \
    return ::cpu::Export<&kernel>::signature;                                                                    \
  }

// A __constant__ array, for Python to fill: where it lies, and its bytes. All OS threads have the same.
#define CPU_EXPORT_CONSTANT(array)                                                                               \
  extern "C" __attribute__((visibility("default"))) void* cpu_constant_##array(size_t* nbytes) {                 \
    *nbytes = sizeof array;                                                                                      \
    return array;                                                                                                \
  }

#endif  // CPU_SHIM_LIST_KERNELS
