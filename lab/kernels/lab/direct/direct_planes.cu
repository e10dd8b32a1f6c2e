// direct_planes_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                    weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW), planes (C-1,N,OC,OH,OW): the sum after each
//           channel but the last.
// Mapping:  one thread per output. Grid (columns, rows, N*OC) in 2-D blocks: threadIdx.x walks columns, threadIdx.y
//           rows.
// Tiles:    KSIZE (3).
// Shared:   none; a 2-D block of any shape, up to 1024 threads of at most 64 registers.
// Cost:     C*KSIZE^2 loads of x and as many of weight per output, 2*C*KSIZE^2 FLOP, and C stores instead of one (theirs:
//           C+1): with 3x3 and C = 3 the bytes written triple, with C = 64 they are 64 times as many.
// Edges:    the window is clipped: taps beside the image are left out, no padded copy is made.
// Teaches:  right, and wasteful: direct_chw.cu with the running sum stored into an output plane of its own inside the
//           loop over channels. Nobody reads these planes; a sum that is under way belongs in a register.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif

extern "C" __global__ void __launch_bounds__(1024, 1) direct_planes_f32(
    float* __restrict__ y, float* __restrict__ planes, const float* __restrict__ x, const float* __restrict__ weight,
    int C, int H, int W, int OC, int OH, int OW, int stride, int padding) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter = weight + (long long)oc * C * KSIZE * KSIZE;
  const long long output = ((long long)blockIdx.z * OH + oh) * OW + ow;
  float* target = planes + output;

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
    if (c + 1 < C) *target = sum;  // the fault
    target += (long long)gridDim.z * OH * OW;
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  y[output] = sum;
}
