// Exercise coalesce: y[i,j] = sum over p, q of filter[p,q] * x[i+p-1,j+q-1]; beside the image x is zero
// Layouts:  float. x and y (rows,columns), filter (3,3): columns lie side by side.
// Launch:   blocks of 32x8 threads, as many as cover the image, whichever way you turn it.
// To do:    The answer is right. But the 32 threads of a warp, which differ in threadIdx.x, read and write addresses
//           that are a row apart: each needs a sector of 32 bytes of its own, 32 sectors an access. Make it 4 or 5.
#include "lab/counted.cuh"

extern "C" __global__ void coalesce(Counted<float>* y, const Counted<float>* x, const Counted<float>* filter, int rows,
                                    int columns) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // row
  const int j = blockIdx.y * blockDim.y + threadIdx.y;  // column
  if (i >= rows || j >= columns) return;
  float sum = 0.f;
  for (int p = 0; p < 3; p++)
    for (int q = 0; q < 3; q++) {
      const int h = i + p - 1, w = j + q - 1;
      if (h >= 0 && h < rows && w >= 0 && w < columns) sum = fmaf(x[h * columns + w], filter[p * 3 + q], sum);
    }
  y[i * columns + j] = sum;
}
