// The one header that a kernel file includes. nvcc and PyCUDA see a few macros and __device__ helpers; a C++ compiler
// gets CUDA's language from cpu_shim.h first, and the same helpers.
//
// Every helper gives the same bits on both: no fast-math intrinsic, no contraction (--fmad=false, -ffp-contract=off),
// every fused multiply-add written as fmaf.
#pragma once

#ifdef __CUDACC__

// A loop of fixed length, to be unrolled.
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")  // where copies of the body would not fit into registers
// The innermost loop over independent accumulators: the host compiler may run its iterations in vector lanes.
#define LANES _Pragma("unroll")
// The launch's dynamic shared memory as an array of T. Its content is undefined at first, as CUDA says.
#define DYNAMIC_SHARED(T, name)                                       \
  extern __shared__ __align__(16) unsigned char dynamic_shared_raw[]; \
  T* const name = reinterpret_cast<T*>(dynamic_shared_raw)

#define WIDE_VECTORS  // these two: see cpu_shim.h
#define VECTOR_FLOATS 4

#ifdef __CUDACC_RTC__  // it has no math.h, from where nvcc has this
#define INFINITY __int_as_float(0x7f800000)
#endif

#else

#include "cpu_shim.h"

#define UNROLL _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#define LANES _Pragma("omp simd")  // -fopenmp-simd: the directive only, no OpenMP library
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(::cpu::dynamic_shared())

#endif

// cp.async exists from Ampere on; older cards and the CPU copy through a register.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_COPY_ASYNC 1
#else
#define HAS_COPY_ASYNC 0
#endif

// A streaming load's hints: past L1 from Volta on, whole 256-byte lines of L2 from Ampere on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define LOAD_STREAM "ld.global.nc.L1::no_allocate.L2::256B.v4.f32"
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
#define LOAD_STREAM "ld.global.nc.L1::no_allocate.v4.f32"
#elif defined(__CUDA_ARCH__)
#define LOAD_STREAM "ld.global.nc.v4.f32"
#endif

// What a kernel has more of in a pass over a whole batch that few of its images need (macro GUARDED): blocks return at
// once where nobody needs what they compute. guard: a word that is set if any image needs the pass, then one for each;
// guarded_images: how many these are, or 0 if all need what one needs.
#ifdef GUARDED
#define GUARD_PARAMETERS , const int *__restrict__ guard, int guarded_images
#define RETURN_UNLESS_NEEDED() \
  if (!guard[0]) return
#define RETURN_UNLESS_NEEDED_BY(first, last) \
  if (!is_needed(guard, guarded_images, first, last)) return
#else
#define GUARD_PARAMETERS
#define RETURN_UNLESS_NEEDED()
#define RETURN_UNLESS_NEEDED_BY(first, last)
#endif

// Whether an image from `first` to `last` needs the pass; what has no row for each image belongs to the only one. Of 0
// images number -1 is the word for all.
__device__ __forceinline__ bool is_needed(const int* guard, int images, int first, int last) {
  bool found = false;
  if (guard[0])
    for (int n = min(first, images - 1); n <= min(last, images - 1); n++) found |= guard[1 + n] != 0;
  return found;
}

// ReLU that keeps NaN; fmaxf would turn it into 0.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }

// The larger value, or NaN if either is NaN; fmaxf would drop it.
__device__ __forceinline__ float max_nan(float a, float b) { return a > b || a != a ? a : b; }

// The smaller value, or NaN if either is NaN.
__device__ __forceinline__ float min_nan(float a, float b) { return a < b || a != a ? a : b; }

// What becomes of a value at the end of a kernel: nothing or a ReLU, with the macro CLIPS two limits around 0. NaN
// stays. A kernel has ACTIVATION_PARAMETER(name) among its parameters, and gets the Activation by ACTIVATION(name).
#ifdef CLIPS
struct Activation {
  float low, high;

  __device__ __forceinline__ float operator()(float v) const { return min_nan(max_nan(v, low), high); }
};
#define ACTIVATION_PARAMETER(name) float name##_low, float name##_high
#define ACTIVATION(name) \
  Activation { name##_low, name##_high }
#else
struct Activation {
  int is_relu;

  __device__ __forceinline__ float operator()(float v) const { return is_relu ? relu(v) : v; }
};
#define ACTIVATION_PARAMETER(name) int name
#define ACTIVATION(name) \
  Activation { name }
#endif

// Which results of a ReLU, with the macro CLIPS of a Clip, hand no gradient on. NaN does.
#ifdef CLIPS
struct Passed {
  static constexpr bool HAS_LIMITS = true;
  float low, high;

  __device__ __forceinline__ bool is_at_end(float v) const { return v <= low || v >= high; }
};
#define PASSED_PARAMETERS , float low, float high
#define PASSED \
  Passed { low, high }
#else
struct Passed {
  static constexpr bool HAS_LIMITS = false;

  __device__ __forceinline__ bool is_at_end(float v) const { return v <= 0.0f; }
};
#define PASSED_PARAMETERS
#define PASSED \
  Passed {}
#endif

// What becomes of the values of the run-time input: nothing, or with the macro CLIPS_INPUT limits around 0.
#ifdef CLIPS_INPUT
struct InputLimits {
  float low, high;

  __device__ __forceinline__ float operator()(float v) const { return min_nan(max_nan(v, low), high); }
};
#define INPUT_PARAMETERS , float input_low, float input_high
#define INPUT_LIMITS \
  InputLimits { input_low, input_high }
#else
struct InputLimits {
  __device__ __forceinline__ float operator()(float v) const { return v; }
};
#define INPUT_PARAMETERS
#define INPUT_LIMITS \
  InputLimits {}
#endif

// Position `step` of a walk over `length` columns that goes forth in even rows and back in odd ones: the FFMA at each
// turn shares an operand with the one before, which a GPU's register cache keeps (4 % of a convolution on an H200).
// Vector lanes want plain order.
__device__ __forceinline__ constexpr int serpentine(int row, int step, int length) {
#ifdef __CUDACC__
  return row % 2 == 0 ? step : length - 1 - step;
#else
  return static_cast<void>(row), static_cast<void>(length), step;
#endif
}

// 16-byte accesses; the address must be a multiple of 16.
__device__ __forceinline__ float4 load4(const float* source) {
#ifdef __CUDACC__
  return *reinterpret_cast<const float4*>(source);
#else
  return cpu::load_vector(source);
#endif
}

__device__ __forceinline__ void store4(float* target, float4 v) { *reinterpret_cast<float4*>(target) = v; }

// 16 bytes of global memory that are read once (weights of a fully connected layer), where a GPU can be told so.
// For memory that the kernel does not write.
__device__ __forceinline__ float4 load4_stream(const float* source) {
#ifdef LOAD_STREAM
  float4 v;
  asm(LOAD_STREAM " {%0, %1, %2, %3}, [%4];"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(__cvta_generic_to_global(source)));
  return v;
#else
  return load4(source);
#endif
}

// 4 values to and from a register array, which loops can index.
__device__ __forceinline__ void unpack4(float* values, float4 v) {
  values[0] = v.x;
  values[1] = v.y;
  values[2] = v.z;
  values[3] = v.w;
}

__device__ __forceinline__ float4 pack4(const float* values) {
  return make_float4(values[0], values[1], values[2], values[3]);
}

// Start copying 16 bytes from global to shared memory, or writing 16 zero bytes if !valid (source is not read then).
// Both addresses are multiples of 16. The bytes are there after copy_async_wait and, for other threads, a barrier.
// PTX ISA 8.0, cp.async with ignore-src: one predicate, where a source size in a register costs address arithmetic.
__device__ __forceinline__ void copy16_async(void* shared_target, const void* global_source, bool valid) {
#if HAS_COPY_ASYNC
  asm volatile(
      "{ .reg .pred ignore;\n"
      "  setp.eq.s32 ignore, %2, 0;\n"
      "  cp.async.cg.shared.global [%0], [%1], 16, ignore; }" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared_target))),
      "l"(__cvta_generic_to_global(global_source)), "r"(static_cast<int>(valid))
      : "memory");
#else
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (valid) v = load4(static_cast<const float*>(global_source));
  store4(static_cast<float*>(shared_target), v);
#endif
}

// The same for one float, of 4 bytes: neither address is more than a multiple of 4.
__device__ __forceinline__ void copy4_async(float* shared_target, const float* global_source, bool valid) {
#if HAS_COPY_ASYNC
  asm volatile(
      "{ .reg .pred ignore;\n"
      "  setp.eq.s32 ignore, %2, 0;\n"
      "  cp.async.ca.shared.global [%0], [%1], 4, ignore; }" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared_target))),
      "l"(__cvta_generic_to_global(global_source)), "r"(static_cast<int>(valid))
      : "memory");
#else
  *shared_target = valid ? *global_source : 0.0f;
#endif
}

// Close a group: the copies that this thread started since the last commit.
__device__ __forceinline__ void copy_async_commit() {
#if HAS_COPY_ASYNC
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most PENDING of this thread's youngest groups are under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
#if HAS_COPY_ASYNC
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// 2^n for -126 <= n <= 127, exact.
__device__ __forceinline__ float exact_exp2(int n) { return __int_as_float((n + 127) << 23); }

// exp(v), the same bits on every device, error below 1.1 ulp: v = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite, ln 2
// in two parts), a polynomial for exp(r), then 2^n in two exact halves so that denormal results are rounded once.
__device__ __forceinline__ float exp_f32(float v) {
  const float ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, to even
  if (v != v) return v;
  if (v > 88.7228394f) return __int_as_float(0x7f800000);  // the largest v with a finite exp(v)
  if (v < -103.972084f) return 0.0f;                       // below half of the smallest denormal
  const float shifted = fmaf(v, 1.44269502f, ROUNDER);
  const float count = shifted - ROUNDER;
  const int n = static_cast<int>(count);
  const float r = fmaf(count, -1.42860677e-6f, fmaf(count, -0.693145752f, v));
  float p = 1.98756912e-4f;
  p = fmaf(p, r, 1.39819994e-3f);
  p = fmaf(p, r, 8.33345205e-3f);
  p = fmaf(p, r, 4.16657962e-2f);
  p = fmaf(p, r, 1.66666657e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p * r, r, r) + 1.0f;
  const int half = n / 2;
  return p * exact_exp2(half) * exact_exp2(n - half);
}
