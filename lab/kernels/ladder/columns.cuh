// What the register tiles (conv_registers.cu and those after it) share: the column of a pixel, the store of outputs.
#pragma once

#include "common.cuh"

#ifndef KERNEL_H
#define KERNEL_H 3
#endif
#ifndef KERNEL_W
#define KERNEL_W 3
#endif
#ifndef TILE_K
#define TILE_K 16
#endif

constexpr int TAPS = KERNEL_H * KERNEL_W;

// The inputs that the taps k = (c,kh,kw) of one output pixel meet, zero outside of the map and of the outputs. What a
// tap adds to the address is the same for every pixel, and so for a warp.
struct Column {
  const float* inp;
  int K, H, W;
  int top, left;  // of the window, in the map
  bool real;      // whether there is such a pixel

  __device__ __forceinline__ Column(const float* inp, int C, int H, int W, int OH, int OW, int SH, int SW, int PT,
                                    int PL, int pixel)
      : inp(inp),
        K(C * TAPS),
        H(H),
        W(W),
        top(pixel / OW * SH - PT),
        left(pixel % OW * SW - PL),
        real(pixel < OH * OW) {}

  __device__ __forceinline__ bool inside(int k) const {
    const int row = top + k % TAPS / KERNEL_W, column = left + k % KERNEL_W;
    return real && k < K && (unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W;
  }
  // Only of an input that is inside may be read.
  __device__ __forceinline__ const float* address(int k) const {
    const int tap = (k / TAPS * H + k % TAPS / KERNEL_W) * W + k % KERNEL_W;
    return inp + (top * W + left + tap);  // an int: a map has less than 2^31 numbers
  }
  __device__ __forceinline__ float value(int k) const { return inside(k) ? *address(k) : 0.f; }
};

// Four pixels side by side of a channel, from `target` on; `left` of them exist.
__device__ __forceinline__ void store_pixels(float* target, const float* values, int left, bool aligned) {
  if (aligned && left >= 4) {
    store4(target, pack4(values));
    return;
  }
  UNROLL
  for (int j = 0; j < 4; j++) {
    if (j < left) target[j] = values[j];
  }
}
