// im2col_taps:   columns[n,tap,pixel] = x[n, c, i*stride+p-padding, j*stride+q-padding], or 0 beside the map
//                where tap = (c*kernel+p)*kernel+q and pixel = i*OW+j
// im2col_pixels: columns[n,pixel,tap], the same transposed
// Layouts:  x (N,C,H,W), columns (N,C*kernel*kernel,OH*OW) or (N,OH*OW,C*kernel*kernel), all float.
// Mapping:  im2col_taps: a thread copies the taps of one channel of an output pixel; grid (pixels, C, N). im2col_pixels:
//           a thread copies all taps of an output pixel, one row of the matrix; grid (pixels, 1, N).
// Shared:   none.
// Cost:     no FLOP; a load (most from the caches) and a store for each tap of each output pixel: the matrix has
//           kernel*kernel/(stride*stride) times the bytes of x.
// Teaches:  The same copy in two orders. In im2col_taps a warp stores 32 neighbouring floats, in im2col_pixels each
//           thread stores to a row of its own, and a warp touches up to 32 sectors of memory at once.
#include "common.cuh"

// x[row][column] of a channel, or 0 beside it.
__device__ __forceinline__ float at(const float* channel, int row, int column, int H, int W) {
  const bool inside = row >= 0 && row < H && column >= 0 && column < W;
  return inside ? channel[(long long)row * W + column] : 0.f;
}

extern "C" __global__ void im2col_taps(float* __restrict__ columns, const float* __restrict__ x, int C, int H, int W,
                                       int OH, int OW, int kernel, int stride, int padding) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x, pixels = OH * OW;
  if (pixel >= pixels) return;
  const int top = pixel / OW * stride - padding, left = pixel % OW * stride - padding;
  const long long channel = (long long)blockIdx.z * C + blockIdx.y;  // counts (n, c)
  const float* source = x + channel * H * W;
  float* target = columns + channel * kernel * kernel * pixels + pixel;
  for (int p = 0; p < kernel; p++)
    for (int q = 0; q < kernel; q++, target += pixels) *target = at(source, top + p, left + q, H, W);
}

extern "C" __global__ void im2col_pixels(float* __restrict__ columns, const float* __restrict__ x, int C, int H, int W,
                                         int OH, int OW, int kernel, int stride, int padding) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x, pixels = OH * OW;
  if (pixel >= pixels) return;
  const int top = pixel / OW * stride - padding, left = pixel % OW * stride - padding;
  const float* source = x + (long long)blockIdx.z * C * H * W;
  float* target = columns + ((long long)blockIdx.z * pixels + pixel) * C * kernel * kernel;
  for (int c = 0; c < C; c++, source += (long long)H * W)
    for (int p = 0; p < kernel; p++)
      for (int q = 0; q < kernel; q++) *target++ = at(source, top + p, left + q, H, W);
}
