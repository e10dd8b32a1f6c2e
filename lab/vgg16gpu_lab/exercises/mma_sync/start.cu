// Exercise mma-sync: y[m,n] = sum over k of a[m,k] * b[n,k], of float16 numbers, summed in float
// Layouts:  a (M,K/2) and b (N,K/2): words of two float16, k innermost; y (M,N) float. M, N, K: multiples of 16, 8, 16.
// Launch:   a warp for each 16x8 outputs; grid (N/8, M/16), blocks of 32 threads. `words` is K/2.
// To do:    A thread computes its four outputs one product after the other. The tensor cores do the 16x8x16 products of
//           a warp at once: multiply_16x8x16 of lab/counted_mma.cuh, which is the instruction mma.sync.m16n8k16. Each
//           thread must bring four words of a and two of b; the header says which. The sums lie as they must already.
#include "lab/counted_mma.cuh"

extern "C" __global__ void mma_sync(Counted<float>* y, const Counted<unsigned>* a, const Counted<unsigned>* b, int N,
                                    int words) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const int m = blockIdx.y * 16 + g, n = blockIdx.x * 8 + 2 * t;
  float sum[4] = {};  // (m, n), (m, n+1), (m+8, n), (m+8, n+1)
  for (int k = 0; k < words; k++)
    for (int i = 0; i < 4; i++) {
      const unsigned va = a[(m + i / 2 * 8) * words + k], vb = b[(n + i % 2) * words + k];
      sum[i] = fmaf(low(va), low(vb), sum[i]);
      sum[i] = fmaf(high(va), high(vb), sum[i]);
    }
  for (int i = 0; i < 4; i++) y[(m + i / 2 * 8) * N + n + i % 2] = sum[i];
}
