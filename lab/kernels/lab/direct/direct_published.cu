// direct_published_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*stride-padding+kh, ow*stride-padding+kw] *
//                       weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,kernel,kernel), y (N,OC,OH,OW), planes (C,N,OC,OH,OW): the sum after each
//           channel.
// Mapping:  one thread per output. Grid (rows, columns, N*OC) in 2-D blocks: threadIdx.x walks ROWS, threadIdx.y
//           columns.
// Shared:   none; a 2-D block of any shape.
// Cost:     C*kernel^2 loads of x and as many of weight per output, 2*C*kernel^2 FLOP, and C+1 stores. In a block 16
//           wide a warp's load or store touches 16 lines of the cache.
// Edges:    the window is clipped before the loops: taps beside the image are left out, no padded copy is made.
// Teaches:  a published kernel with both of its faults: neighbouring threads read and store a row apart
//           (direct_rows.cu has this one alone), and each stores its running sum for every channel (direct_planes.cu).
//           Theirs puts the answer into plane 0 once more; here that is y. Loops end at run time, and as no pointer is
//           __restrict__, every store stays where it is: as theirs.
#include "common.cuh"

extern "C" __global__ void direct_published_f32(float* y, float* planes, float* x, float* weight, int C, int H, int W,
                                                int OC, int OH, int OW, int stride, int padding, int kernel) {
  const int oh = blockIdx.x * blockDim.x + threadIdx.x;  // the first fault
  const int ow = blockIdx.y * blockDim.y + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  if (oh >= OH || ow >= OW) return;
  const int top = oh * stride - padding, left = ow * stride - padding;
  const int kh_begin = top < 0 ? -top : 0, kh_end = kernel < H - top ? kernel : H - top;
  const int kw_begin = left < 0 ? -left : 0, kw_end = kernel < W - left ? kernel : W - left;
  float* plane = x + (long long)n * C * H * W;
  float* filter = weight + (long long)oc * C * kernel * kernel;
  const long long output = ((long long)blockIdx.z * OH + oh) * OW + ow;
  float* target = planes + output;

  float sum = 0.f;
  for (int c = 0; c < C; c++) {
    for (int kh = kh_begin; kh < kh_end; kh++)
      for (int kw = kw_begin; kw < kw_end; kw++)
        sum = fmaf(plane[(long long)(top + kh) * W + left + kw], filter[kh * kernel + kw], sum);
    *target = sum;  // the second fault
    target += (long long)gridDim.z * OH * OW;
    plane += (long long)H * W;
    filter += kernel * kernel;
  }
  y[output] = sum;
}
