// Numbers of a warp and of a block from those of their threads, in an order that never changes.
#pragma once

#include "common.cuh"

// Calls take(i, sum of values[i] over a warp's lanes), by a butterfly, in every lane. On the CPU the warp meets once.
template <int COUNT, class Take>
__device__ __forceinline__ void add_lanes(float (&values)[COUNT], const Take& take) {
#ifndef __CUDACC__
  ::cpu::warp_collective(0xffffffffu, values, &::cpu::add_lanes<COUNT>);
#endif
  UNROLL
  for (int i = 0; i < COUNT; i++) {
    float sum = values[i];
#ifdef __CUDACC__
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
#endif
    take(i, sum);
  }
}

// Combines one value of every thread of a block of WARPS warps: lanes by a butterfly, warps in order. Everybody gets the
// result. All threads must come; `scratch` is shared and holds WARPS floats.
template <bool MAXIMUM, int WARPS>
__device__ __forceinline__ float block_reduce(float value, float* scratch) {
  UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = MAXIMUM ? max_nan(value, other) : value + other;
  }
  __syncthreads();  // the previous reduction has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();  // all warps have written
  value = scratch[0];
  for (int i = 1; i < WARPS; i++) value = MAXIMUM ? max_nan(value, scratch[i]) : value + scratch[i];
  return value;
}
