// The network's input as a first convolution on mma.sync reads it: where the source keeps a value, and what a value
// means that was read. The kernel may set IMAGE (0) and IN_CHANNELS (3) before it includes this.
#pragma once

#include "mma.cuh"

enum : int { IMAGE_F32 = 0, IMAGE_U8 = 1 };

#ifndef IMAGE
#define IMAGE 0
#endif
#ifndef IN_CHANNELS
#define IN_CHANNELS 3
#endif

constexpr int C = IN_CHANNELS;
static_assert(C >= 1 && C <= 4, "a pixel has four channel slots");

// hw: pixels of a channel.
template <int KIND>
struct ImageAs;

template <>
struct ImageAs<IMAGE_F32> {
  typedef float Raw;
  static __device__ __forceinline__ int offset(int c, int pixel, int hw) { return c * hw + pixel; }
  static __device__ __forceinline__ float value(Raw raw, float, float) { return raw; }
};

template <>
struct ImageAs<IMAGE_U8> {
  typedef unsigned char Raw;
  static __device__ __forceinline__ int offset(int c, int pixel, int) { return pixel * C + c; }
  static __device__ __forceinline__ float value(Raw raw, float scale, float shift) {
    return fmaf(static_cast<float>(raw), scale, shift);
  }
};

typedef ImageAs<IMAGE> Image;
