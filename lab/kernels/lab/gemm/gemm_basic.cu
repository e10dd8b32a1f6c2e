// gemm_basic: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  a thread computes one output; a square block has its columns along pixels, its rows along output channels;
//           grid (pixels, OC, N).
// Shared:   none.
// Cost:     per output: 2*taps FLOP, 2*taps loads from global memory: one load per operation.
// Teaches:  Every operand comes from global memory, however often a neighbour has just read it; the caches are all that
//           helps. With one output channel only the first row of a block works: 8 lanes of a warp in an 8x8 block, all
//           32 in a 32x32 block.
#include "common.cuh"

extern "C" __global__ void gemm_basic(float* __restrict__ y, const float* __restrict__ weight,
                                      const float* __restrict__ columns, int OC, int taps, int pixels) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
  const int output = blockIdx.y * blockDim.y + threadIdx.y, n = blockIdx.z;
  if (pixel >= pixels || output >= OC) return;
  const float* filter = weight + (long long)output * taps;
  const float* column = columns + (long long)n * taps * pixels + pixel;
  float sum = 0.f;
  for (int tap = 0; tap < taps; tap++) sum = fmaf(filter[tap], column[(long long)tap * pixels], sum);
  y[((long long)n * OC + output) * pixels + pixel] = sum;
}
