// One number of a block from one of each of its threads, in an order that never changes.
#pragma once

#include "common.cuh"

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
