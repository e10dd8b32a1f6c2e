// several_channels_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                       weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  one thread per pixel of PER_THREAD output channels. Grid (columns, rows, N*groups of output channels) in
//           2-D blocks: threadIdx.x walks columns, threadIdx.y rows.
// Tiles:    KSIZE (3), PER_THREAD (4).
// Shared:   none; 2-D blocks of up to 256 threads. Registers: PER_THREAD sums.
// Cost:     2*C*KSIZE^2 FLOP per output. Loads of x per output: C*KSIZE^2/PER_THREAD; of weight: C*KSIZE^2, each one
//           float for a whole warp.
// Edges:    taps beside the image are left out. The last group may go beyond OC: it reads the last channel again and
//           does not store.
// Teaches:  all output channels of a pixel read the same window, so it is loaded once for several of them. Loads stay
//           coalesced, unlike those of several_outputs.cu; one output channel gains nothing.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif
#ifndef PER_THREAD
#define PER_THREAD 4
#endif

extern "C" __global__ void __launch_bounds__(256, 1) several_channels_f32(float* __restrict__ y,
                                                                          const float* __restrict__ x,
                                                                          const float* __restrict__ weight, int C,
                                                                          int H, int W, int OC, int OH, int OW,
                                                                          int stride, int padding) {
  const int groups = (OC + PER_THREAD - 1) / PER_THREAD;
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % groups * PER_THREAD, n = blockIdx.z / groups;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter[PER_THREAD];
  UNROLL
  for (int i = 0; i < PER_THREAD; i++) filter[i] = weight + (long long)min(oc + i, OC - 1) * C * KSIZE * KSIZE;

  float sum[PER_THREAD] = {};
  for (int c = 0; c < C; c++) {
    UNROLL
    for (int kh = 0; kh < KSIZE; kh++) {
      const int h = top + kh;
      if (h < 0 || h >= H) continue;
      UNROLL
      for (int kw = 0; kw < KSIZE; kw++) {
        const int w = left + kw;
        if (w < 0 || w >= W) continue;
        const float value = plane[(long long)h * W + w];
        UNROLL
        for (int i = 0; i < PER_THREAD; i++) sum[i] = fmaf(value, filter[i][kh * KSIZE + kw], sum[i]);
      }
    }
    plane += (long long)H * W;
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) filter[i] += KSIZE * KSIZE;
  }
  UNROLL
  for (int i = 0; i < PER_THREAD; i++)
    if (oc + i < OC) y[(((long long)n * OC + oc + i) * OH + oh) * OW + ow] = sum[i];
}
