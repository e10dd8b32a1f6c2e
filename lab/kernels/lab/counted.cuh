// Counted<T>: a T in memory that notes who reads and writes it, for the exercises of `vgg16gpu lab exercise`.
//
// Without COUNTED it is T. With -DCOUNTED=1 counted_log gets an entry for each read and write of one, for each
// __syncthreads and for each product of counted_mma.cuh: which block, which thread, what, where. Those are the accesses
// that the source names; a compiler joins some. The entries of a thread are in its order. lab/exercises/log.py reads it.
#pragma once

#include "common.cuh"

#ifdef COUNTED

constexpr unsigned long long COUNTED_ENTRIES = 1 << 22;

// The number of entries, then two words for each: block << 32 | thread << 8 | what, and the place.
#ifdef __CUDACC__
__device__ unsigned long long counted_log[1 + 2 * COUNTED_ENTRIES];
#else
__constant__ unsigned long long counted_log[1 + 2 * COUNTED_ENTRIES];
#endif

enum Noted : unsigned { NOTED_READ = 0, NOTED_WRITE = 1, NOTED_BARRIER = 2, NOTED_PRODUCT = 3, NOTED_ATOMIC = 4 };

__device__ inline void note(Noted what, unsigned long long place) {
  const unsigned long long block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
#ifdef __CUDACC__
  const unsigned long long at = atomicAdd(&counted_log[0], 1ull);
#else
  const unsigned long long at = __atomic_fetch_add(&counted_log[0], 1ull, __ATOMIC_SEQ_CST);
#endif
  if (at >= COUNTED_ENTRIES) return;
  counted_log[1 + 2 * at] = block << 32 | thread << 8 | what;
  counted_log[2 + 2 * at] = place;
}

template <class T>
struct CountedValue {
  T value;

  __device__ unsigned long long place() const { return reinterpret_cast<unsigned long long>(this); }
  __device__ operator T() const {
    note(NOTED_READ, place());
    return value;
  }
  __device__ T operator=(T other) {
    note(NOTED_WRITE, place());
    return value = other;
  }
  __device__ T operator=(const CountedValue& other) { return *this = static_cast<T>(other); }
  __device__ T operator+=(T other) { return *this = static_cast<T>(*this) + other; }
};

template <class T>
using Counted = CountedValue<T>;

template <class T>
__device__ inline T atomicAdd(CountedValue<T>* target, T value) {
  note(NOTED_ATOMIC, target->place());
  return atomicAdd(&target->value, value);
}

__device__ inline void counted_barrier(int line) {
  note(NOTED_BARRIER, line);
#ifdef __CUDACC__
  __syncthreads();
#else
  __syncthreads(line);
#endif
}
#define __syncthreads() counted_barrier(__LINE__)

#else

template <class T>
using Counted = T;

#endif
