// im2col_taps: columns[n,tap,pixel] = x[n, c, i*stride+p-padding, j*stride+q-padding], or 0 beside the map
//              where tap = (c*kernel+p)*kernel+q and pixel = i*OW+j
// im2col_rows: columns[n,pixel,tap], the same transposed
// Layouts:  x (N,C,H,W), columns (N,C*kernel*kernel,OH*OW) or (N,OH*OW,C*kernel*kernel), all float.
// Mapping:  a thread copies all taps of an output pixel. im2col_taps: grid (columns, rows, N) in 2-D blocks, whose
//           threadIdx.x walks columns. im2col_rows: grid (rows, columns, N) in 2-D blocks, threadIdx.x walks ROWS.
// Shared:   none.
// Cost:     no FLOP; a load (most from the caches) and a store for each tap of each output pixel: the matrix has
//           kernel*kernel/(stride*stride) times the bytes of x.
// Teaches:  The same copy in two orders. In im2col_taps half a warp stores 16 neighbouring floats. In im2col_rows, a
//           published one, each thread stores to a row of its own, a warp touches up to 32 sectors of memory at once,
//           and what it loads lies rows apart as well. Its pointers are not __restrict__, as theirs, so that no load
//           passes a store.
#include "common.cuh"

// x[row][column] of a channel, or 0 beside it.
__device__ __forceinline__ float at(const float* channel, int row, int column, int H, int W) {
  const bool inside = row >= 0 && row < H && column >= 0 && column < W;
  return inside ? channel[(long long)row * W + column] : 0.f;
}

extern "C" __global__ void im2col_taps(float* __restrict__ columns, const float* __restrict__ x, int C, int H, int W,
                                       int OH, int OW, int kernel, int stride, int padding) {
  const int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= OH || j >= OW) return;
  const int top = i * stride - padding, left = j * stride - padding, pixels = OH * OW;
  const float* source = x + (long long)blockIdx.z * C * H * W;
  float* target = columns + (long long)blockIdx.z * C * kernel * kernel * pixels + i * OW + j;
  for (int c = 0; c < C; c++, source += (long long)H * W)
    for (int p = 0; p < kernel; p++)
      for (int q = 0; q < kernel; q++, target += pixels) *target = at(source, top + p, left + q, H, W);
}

extern "C" __global__ void im2col_rows(float* columns, float* x, int C, int H, int W, int OH, int OW, int kernel,
                                       int stride, int padding) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= OH || j >= OW) return;
  const int top = i * stride - padding, left = j * stride - padding;
  float* source = x + (long long)blockIdx.z * C * H * W;
  float* target = columns + (((long long)blockIdx.z * OH + i) * OW + j) * C * kernel * kernel;
  for (int c = 0; c < C; c++, source += (long long)H * W)
    for (int p = 0; p < kernel; p++)
      for (int q = 0; q < kernel; q++) *target++ = at(source, top + p, left + q, H, W);
}
