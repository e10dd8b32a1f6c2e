// Tensors of any rank and any strides: what the general kernels know of them comes in one argument, the struct Walk. Its
// rows hold a number for each dimension, outermost first: extents, strides in floats, limits. Which row is which says the
// kernel's header. Dimensions that are not there have extent 1.
#pragma once

#include "common.cuh"

constexpr int RANK = 8;

struct Walk {
  int row[RANK][RANK];
};

// Splits a position in row-major order into indices, one for each dimension of `extent`.
__device__ __forceinline__ void indices_of(int position, const int (&extent)[RANK], int (&index)[RANK]) {
  UNROLL
  for (int d = RANK - 1; d >= 0; d--) {
    index[d] = position % extent[d];
    position /= extent[d];
  }
}

// Where the element with these indices lies, in floats.
__device__ __forceinline__ long long offset_of(const int (&index)[RANK], const int (&stride)[RANK]) {
  long long offset = 0;
  UNROLL
  for (int d = 0; d < RANK; d++) offset += static_cast<long long>(index[d]) * stride[d];
  return offset;
}

#ifndef __CUDACC__
namespace cpu {
template <>
struct ArgumentKind<Walk> {
  static constexpr char letter = 'w';
};
}  // namespace cpu
#endif
