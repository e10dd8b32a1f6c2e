// direct_hwc_f32: y[n,oh,ow,oc] = sum over kh, kw, c of x[n, oh*stride-padding+kh, ow*stride-padding+kw, c] *
//                 weight[oc,c,kh,kw]
// Layouts:  float. x (N,H,W,C), weight (OC,C,KSIZE,KSIZE), y (N,OH,OW,OC).
// Mapping:  one thread per output. Grid (columns, rows, N*OC) in 2-D blocks: threadIdx.x walks columns, threadIdx.y
//           rows.
// Tiles:    KSIZE (3).
// Shared:   none; a 2-D block of any shape, up to 1024 threads of at most 64 registers.
// Cost:     C*KSIZE^2 loads of x and as many of weight per output, 2*C*KSIZE^2 FLOP: a load for every FLOP. Neighbouring
//           threads load floats of x that lie stride*C apart, the other channels then come from the cache; what they
//           store lies OC apart.
// Edges:    the window is clipped: taps beside the image are left out, no padded copy is made.
// Teaches:  HWC puts neighbouring columns C floats apart, so a load touches C times the sectors that it needs. With
//           three channels caches make up for most of it; a store with many outputs has no such help.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif

extern "C" __global__ void __launch_bounds__(1024, 1) direct_hwc_f32(float* __restrict__ y, const float* __restrict__ x,
                                                                     const float* __restrict__ weight, int C, int H,
                                                                     int W, int OC, int OH, int OW, int stride,
                                                                     int padding) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* filter = weight + (long long)oc * C * KSIZE * KSIZE;

  float sum = 0.f;
  UNROLL
  for (int kh = 0; kh < KSIZE; kh++) {
    const int h = top + kh;
    if (h < 0 || h >= H) continue;
    UNROLL
    for (int kw = 0; kw < KSIZE; kw++) {
      const int w = left + kw;
      if (w < 0 || w >= W) continue;
      const float* pixel = x + (((long long)n * H + h) * W + w) * C;
      for (int c = 0; c < C; c++) sum = fmaf(pixel[c], filter[(c * KSIZE + kh) * KSIZE + kw], sum);
    }
  }
  y[(((long long)n * OH + oh) * OW + ow) * OC + oc] = sum;
}
