// Solution of mma-sync: y[m,n] = sum over k of a[m,k] * b[n,k], of float16 numbers, summed in float
// Layouts:  a (M,K/2) and b (N,K/2): words of two float16, k innermost; y (M,N) float. M, N, K: multiples of 16, 8, 16.
// Launch:   a warp for each 16x8 outputs; grid (N/8, M/16), blocks of 32 threads. `words` is K/2.
#include "lab/counted_mma.cuh"

extern "C" __global__ void mma_sync(Counted<float>* y, const Counted<unsigned>* a, const Counted<unsigned>* b, int N,
                                    int words) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const int m = blockIdx.y * 16 + g, n = blockIdx.x * 8 + 2 * t;
  float sum[4] = {};  // (m, n), (m, n+1), (m+8, n), (m+8, n+1)
  const int column = blockIdx.x * 8 + g;  // of b: another one than those of the sums
  for (int k = t; k < words; k += 8) {    // 8 words are 16 numbers
    const unsigned fa[4] = {a[m * words + k], a[(m + 8) * words + k], a[m * words + k + 4], a[(m + 8) * words + k + 4]};
    const unsigned fb[2] = {b[column * words + k], b[column * words + k + 4]};
    multiply_16x8x16(sum, fa, fb);
  }
  for (int i = 0; i < 4; i++) y[(m + i / 2 * 8) * N + n + i % 2] = sum[i];
}
