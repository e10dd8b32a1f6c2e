// Solution of coalesce: y[i,j] = sum over p, q of filter[p,q] * x[i+p-1,j+q-1]; beside the image x is zero
// Layouts:  float. x and y (rows,columns), filter (3,3): columns lie side by side.
// Launch:   blocks of 32x8 threads, as many as cover the image, whichever way you turn it.
#include "lab/counted.cuh"

extern "C" __global__ void coalesce(Counted<float>* y, const Counted<float>* x, const Counted<float>* filter, int rows,
                                    int columns) {
  const int i = blockIdx.y * blockDim.y + threadIdx.y;  // row
  const int j = blockIdx.x * blockDim.x + threadIdx.x;  // column: neighbours in a warp are neighbours in memory
  if (i >= rows || j >= columns) return;
  float sum = 0.f;
  for (int p = 0; p < 3; p++)
    for (int q = 0; q < 3; q++) {
      const int h = i + p - 1, w = j + q - 1;
      if (h >= 0 && h < rows && w >= 0 && w < columns) sum = fmaf(x[h * columns + w], filter[p * 3 + q], sum);
    }
  y[i * columns + j] = sum;
}
