// gemm_by_column: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  a thread computes a column of y, all output channels of a pixel; grid (pixels, 1, N).
// Shared:   none.
// Cost:     per output: 2*taps FLOP, 2*taps loads: the filter's are the same for all threads, the matrix's lie side by
//           side and come again, from a cache at best, for every output channel.
// Teaches:  A layer has many columns: there are threads enough, and neighbours read and write neighbouring floats. The
//           same loops as gemm_by_row with the outer one spread over threads instead.
#include "common.cuh"

extern "C" __global__ void gemm_by_column(float* __restrict__ y, const float* __restrict__ weight,
                                          const float* __restrict__ columns, int OC, int taps, int pixels) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x, n = blockIdx.z;
  if (pixel >= pixels) return;
  const float* column = columns + (long long)n * taps * pixels + pixel;
  for (int output = 0; output < OC; output++) {
    const float* filter = weight + (long long)output * taps;
    float sum = 0.f;
    for (int tap = 0; tap < taps; tap++) sum = fmaf(filter[tap], column[(long long)tap * pixels], sum);
    y[((long long)n * OC + output) * pixels + pixel] = sum;
  }
}
