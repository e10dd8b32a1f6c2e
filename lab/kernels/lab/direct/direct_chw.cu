// direct_chw_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                 weight[oc,c,kh,kw] (+ bias[oc])
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), bias (OC), y (N,OC,OH,OW).
// Mapping:  one thread per output. Grid (columns, rows, N*OC) in 2-D blocks: threadIdx.x walks columns, threadIdx.y
//           rows.
// Tiles:    KSIZE (3), BIAS (0: bias is not read).
// Shared:   none; a 2-D block of any shape, up to 1024 threads of at most 64 registers.
// Cost:     C*KSIZE^2 loads of x and as many of weight per output, 2*C*KSIZE^2 FLOP: a load for every FLOP. A warp's
//           load of x takes consecutive floats (stride apart), its load of weight is one float for all threads.
// Edges:    the window is clipped: taps beside the image are left out, no padded copy is made.
// Teaches:  neighbouring threads read neighbouring floats, so a warp's load is a few lines of the cache. What is left is
//           the number of loads: each value is fetched anew for every output that it is part of.
#include "common.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef KSIZE
#define KSIZE 3
#endif

extern "C" __global__ void __launch_bounds__(1024, 1) direct_chw_f32(float* __restrict__ y, const float* __restrict__ x,
                                                                     const float* __restrict__ weight,
                                                                     const float* __restrict__ bias, int C, int H,
                                                                     int W, int OC, int OH, int OW, int stride,
                                                                     int padding) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter = weight + (long long)oc * C * KSIZE * KSIZE;

  float sum = 0.f;
  for (int c = 0; c < C; c++) {
    ROLLED
    for (int kh = 0; kh < KSIZE; kh++) {
      const int h = top + kh;
      if (h < 0 || h >= H) continue;
      UNROLL
      for (int kw = 0; kw < KSIZE; kw++) {
        const int w = left + kw;
        if (w >= 0 && w < W) sum = fmaf(plane[(long long)h * W + w], filter[kh * KSIZE + kw], sum);
      }
    }
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  y[((long long)blockIdx.z * OH + oh) * OW + ow] = BIAS ? sum + bias[oc] : sum;
}
