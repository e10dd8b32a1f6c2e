// simple_16x16_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                   weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,kernel,kernel), y (N,OC,OH,OW).
// Mapping:  one thread per output. Grid (columns, rows, N*OC) of 16x16 threads: a warp is two rows of 16 outputs.
// Tiles:    none: the size of the kernel is an argument, its loops are not unrolled.
// Shared:   none; 256 threads.
// Cost:     C*kernel^2 loads of x and as many of weight per output, 2*C*kernel^2 FLOP; as many comparisons again, and steps
//           of the loops.
// Edges:    zero padding: a tap beside the image counts as zero and is multiplied like every other.
// Teaches:  the first kernel that one writes, and what is hidden in it: next to each multiply-add run its two loads, the
//           test for the border, the index and the loop. direct_chw.cu is the same with the kernel's size known to the
//           compiler.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) simple_16x16_f32(float* __restrict__ y, const float* __restrict__ x,
                                                                   const float* __restrict__ weight, int C, int H,
                                                                   int W, int OC, int OH, int OW, int kernel,
                                                                   int stride, int padding) {
  const int ow = blockIdx.x * 16 + threadIdx.x;
  const int oh = blockIdx.y * 16 + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;

  float sum = 0.f;
  for (int c = 0; c < C; c++) {
    for (int kh = 0; kh < kernel; kh++) {
      for (int kw = 0; kw < kernel; kw++) {
        const int h = oh * stride - padding + kh, w = ow * stride - padding + kw;
        const bool inside = h >= 0 && h < H && w >= 0 && w < W;
        const float value = inside ? x[(((long long)n * C + c) * H + h) * W + w] : 0.f;
        sum = fmaf(value, weight[(((long long)oc * C + c) * kernel + kh) * kernel + kw], sum);
      }
    }
  }
  y[((long long)blockIdx.z * OH + oh) * OW + ow] = sum;
}
