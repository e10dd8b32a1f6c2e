// constant_weights_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                       weight[oc,c,kh,kw] (+ bias[oc])
// Layouts:  float. x (N,C,H,W), bias (OC), y (N,OC,OH,OW); weight (OC,C,KSIZE,KSIZE) in constant memory, at most 16384
//           floats.
// Mapping:  one thread per output. Grid (columns, rows, N*OC) in 2-D blocks: threadIdx.x walks columns, threadIdx.y rows.
// Tiles:    KSIZE (3), BIAS (0: bias is not read).
// Shared:   none; any 2-D block.
// Cost:     C*KSIZE^2 loads of x per output, as many of weight from the constant cache; 2*C*KSIZE^2 FLOP.
// Edges:    the window is clipped: taps beside the image are left out, no padded copy is made.
// Teaches:  the 64 KB of constant memory have a cache of their own, which gives one word to all threads of a warp at once.
//           Here they all want the same weight: half of direct_chw.cu's loads leave the way that x takes. Threads that want
//           different words wait for each other, so only what is the same for a warp belongs there.
#include "common.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef KSIZE
#define KSIZE 3
#endif

constexpr int CAPACITY = 65536 / sizeof(float);

extern "C" {
__constant__ float weight[CAPACITY];
}

extern "C" __global__ void constant_weights_f32(float* __restrict__ y, const float* __restrict__ x,
                                                const float* __restrict__ bias, int C, int H, int W, int OC, int OH,
                                                int OW, int stride, int padding) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* plane = x + (long long)n * C * H * W;
  int filter = oc * C * KSIZE * KSIZE;

  float sum = 0.f;
  for (int c = 0; c < C; c++) {
    UNROLL
    for (int kh = 0; kh < KSIZE; kh++) {
      const int h = top + kh;
      if (h < 0 || h >= H) continue;
      UNROLL
      for (int kw = 0; kw < KSIZE; kw++) {
        const int w = left + kw;
        if (w >= 0 && w < W) sum = fmaf(plane[(long long)h * W + w], weight[filter + kh * KSIZE + kw], sum);
      }
    }
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  y[((long long)blockIdx.z * OH + oh) * OW + ow] = BIAS ? sum + bias[oc] : sum;
}
