// gemm_by_row: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  a thread computes a row of y, an output channel of an image; grid (OC, 1, N).
// Shared:   none.
// Cost:     per output: 2*taps FLOP, 2*taps loads; one of them is the same for the whole warp, the filter's are not side
//           by side.
// Teaches:  The number of threads follows from what a thread owns. A layer has few rows and many columns: with one
//           output channel a single thread of the whole GPU computes the image, and waits for memory at every step.
#include "common.cuh"

extern "C" __global__ void gemm_by_row(float* __restrict__ y, const float* __restrict__ weight,
                                       const float* __restrict__ columns, int OC, int taps, int pixels) {
  const int output = blockIdx.x * blockDim.x + threadIdx.x, n = blockIdx.z;
  if (output >= OC) return;
  const float* filter = weight + (long long)output * taps;
  const float* matrix = columns + (long long)n * taps * pixels;
  float* row = y + ((long long)n * OC + output) * pixels;
  for (int pixel = 0; pixel < pixels; pixel++) {
    float sum = 0.f;
    for (int tap = 0; tap < taps; tap++) sum = fmaf(filter[tap], matrix[(long long)tap * pixels + pixel], sum);
    row[pixel] = sum;
  }
}
