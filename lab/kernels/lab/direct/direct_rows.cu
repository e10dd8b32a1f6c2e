// direct_rows_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                  weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  one thread per output. Grid (rows, columns, N*OC) in 2-D blocks: threadIdx.x walks ROWS, threadIdx.y
//           columns.
// Tiles:    KSIZE (3).
// Shared:   none; a 2-D block of any shape, up to 1024 threads of at most 64 registers.
// Cost:     C*KSIZE^2 loads of x and as many of weight per output, 2*C*KSIZE^2 FLOP. Neighbouring threads read and
//           write a row apart: in a block 16 wide a warp's load or store touches 16 lines of the cache, where
//           direct_chw.cu touches two to four.
// Edges:    the window is clipped: taps beside the image are left out, no padded copy is made.
// Teaches:  right, and uncoalesced: the arithmetic of direct_chw.cu with x and y of the block exchanged. threadIdx.x
//           must walk what is contiguous in memory.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif

extern "C" __global__ void __launch_bounds__(1024, 1) direct_rows_f32(float* __restrict__ y,
                                                                      const float* __restrict__ x,
                                                                      const float* __restrict__ weight, int C, int H,
                                                                      int W, int OC, int OH, int OW, int stride,
                                                                      int padding) {
  const int oh = blockIdx.x * blockDim.x + threadIdx.x;  // the fault
  const int ow = blockIdx.y * blockDim.y + threadIdx.y;
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
  y[((long long)blockIdx.z * OH + oh) * OW + ow] = sum;
}
