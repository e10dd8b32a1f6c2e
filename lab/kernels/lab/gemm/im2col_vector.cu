// gemm_vector: y[n,o,pixel] = sum over tap of columns[n,pixel,tap] * weight[o,tap]
// Layouts:  columns (N,pixels,taps), made by im2col_rows of im2col.cu; weight (OC,taps), y (N,OC,pixels), all float.
// Mapping:  the filter is a vector, a thread multiplies one row of the matrix with it; grid (pixels, OC, N).
// Shared:   none.
// Cost:     per output: 2*taps FLOP, 2*taps loads; the weights' are the same for a whole warp, the matrix is read once
//           per output channel.
// Teaches:  A row for each thread is natural and slow: the threads of a warp read taps*4 bytes apart, so that every
//           load takes up to 32 sectors, and only the L1 cache gives the other floats of a sector a chance to be used.
#include "common.cuh"

extern "C" __global__ void gemm_vector(float* __restrict__ y, const float* __restrict__ weight,
                                       const float* __restrict__ columns, int OC, int taps, int pixels) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x, output = blockIdx.y, n = blockIdx.z;
  if (pixel >= pixels) return;
  const float* row = columns + ((long long)n * pixels + pixel) * taps;
  const float* filter = weight + (long long)output * taps;
  float sum = 0.f;
  for (int tap = 0; tap < taps; tap++) sum = fmaf(filter[tap], row[tap], sum);
  y[((long long)n * OC + output) * pixels + pixel] = sum;
}
