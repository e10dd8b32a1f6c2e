// direct_hwc_f32: y[n,oh,ow,oc] = sum over c, kh, kw of x[n, oh*stride-padding+kh, ow*stride-padding+kw, c] *
//                 weight[oc,c,kh,kw]
// Layouts:  float. x (N,H,W,C), weight (OC,C,kernel,kernel), y (N,OH,OW,OC). The published kernel has its one filter as
//           (kernel,kernel,C): with all threads of a warp at the same weight that is no difference.
// Mapping:  one thread per output. Grid (columns, rows, N*OC) in 2-D blocks: threadIdx.x walks columns, threadIdx.y
//           rows.
// Shared:   none; a 2-D block of any shape, up to 1024 threads of at most 64 registers.
// Cost:     C*kernel^2 loads of x and as many of weight per output, 2*C*kernel^2 FLOP: a load for every FLOP, and four
//           bounds are looked at for every tap. Neighbouring threads load floats of x that lie stride*C apart, the other
//           channels come from the cache later; what they store lies OC apart.
// Edges:    every tap is tested and left out beside the image, no padded copy is made.
// Teaches:  channels are the outermost loop and lie innermost in memory, as published: a warp's load touches C times
//           the sectors that it needs, and comes back for the next channel only after a whole window.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) direct_hwc_f32(float* __restrict__ y, const float* __restrict__ x,
                                                                     const float* __restrict__ weight, int C, int H,
                                                                     int W, int OC, int OH, int OW, int stride,
                                                                     int padding, int kernel) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const float* image = x + (long long)n * H * W * C;
  const float* filter = weight + (long long)oc * C * kernel * kernel;

  float sum = 0.f;
  for (int c = 0; c < C; c++)
    for (int kh = 0; kh < kernel; kh++)
      for (int kw = 0; kw < kernel; kw++) {
        const int h = top + kh, w = left + kw;
        if (h >= 0 && h < H && w >= 0 && w < W)
          sum = fmaf(image[((long long)h * W + w) * C + c], filter[(c * kernel + kh) * kernel + kw], sum);
      }
  y[(((long long)n * OH + oh) * OW + ow) * OC + oc] = sum;
}
