// several_outputs_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-padding+kh, ow*STRIDE-padding+kw] *
//                      weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  one thread per PER_THREAD consecutive outputs of a row. Grid (groups of columns, rows, N*OC) in 2-D blocks:
//           threadIdx.x walks groups, threadIdx.y rows.
// Tiles:    KSIZE (3), STRIDE (1), PER_THREAD (4).
// Shared:   none; 2-D blocks of up to 256 threads. Registers: PER_THREAD sums and a row of the window.
// Cost:     2*C*KSIZE^2 FLOP per output. Loads of x per output: C*KSIZE*((PER_THREAD-1)*STRIDE+KSIZE)/PER_THREAD, for
//           3x3, stride 1 and 4 outputs half of direct_chw.cu's; of weight: C*KSIZE^2/PER_THREAD.
// Edges:    values beside the image count as zero; outputs beyond the row are computed and not stored.
// Teaches:  a value in a register serves every output whose window holds it. The price: neighbouring threads read and
//           write PER_THREAD*STRIDE and PER_THREAD floats apart, and there are fewer threads to hide a wait.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef PER_THREAD
#define PER_THREAD 4
#endif

constexpr int SPAN = (PER_THREAD - 1) * STRIDE + KSIZE;  // columns of x that a thread's windows cover

extern "C" __global__ void __launch_bounds__(256, 1) several_outputs_f32(float* __restrict__ y,
                                                                         const float* __restrict__ x,
                                                                         const float* __restrict__ weight, int C, int H,
                                                                         int W, int OC, int OH, int OW, int padding) {
  const int ow = (blockIdx.x * blockDim.x + threadIdx.x) * PER_THREAD;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * STRIDE - padding, left = ow * STRIDE - padding;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter = weight + (long long)oc * C * KSIZE * KSIZE;

  float sum[PER_THREAD] = {};
  for (int c = 0; c < C; c++) {
    ROLLED
    for (int kh = 0; kh < KSIZE; kh++) {
      const int h = top + kh;
      if (h < 0 || h >= H) continue;
      float row[SPAN];
      UNROLL
      for (int i = 0; i < SPAN; i++) {
        const int w = left + i;
        row[i] = w >= 0 && w < W ? plane[(long long)h * W + w] : 0.f;
      }
      UNROLL
      for (int kw = 0; kw < KSIZE; kw++) {
        const float tap = filter[kh * KSIZE + kw];
        LANES
        for (int i = 0; i < PER_THREAD; i++) sum[i] = fmaf(row[i * STRIDE + kw], tap, sum[i]);
      }
    }
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  float* target = y + ((long long)blockIdx.z * OH + oh) * OW + ow;
  UNROLL
  for (int i = 0; i < PER_THREAD; i++)
    if (ow + i < OW) target[i] = sum[i];
}
