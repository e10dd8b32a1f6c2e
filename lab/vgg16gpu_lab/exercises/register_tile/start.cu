// Exercise register-tile: y[m,n] = sum over k of a[m,k] * b[k,n]
// Layouts:  float. a (M,K), b (K,N), y (M,N).
// Launch:   blocks of 16x16 threads; a block computes EDGE x EDGE outputs, EDGE = 16 * TILE (#define TILE, 1 to 8).
// To do:    Every product (fmaf) takes two values from shared memory, and shared memory is slower than arithmetic. Let a
//           thread compute TILE x TILE outputs (4 x 4, say), 16 apart in each direction: it reads TILE values of a and
//           TILE of b into registers, arrays like float ra[TILE], and uses each TILE times.
#include "lab/counted.cuh"

#define TILE 1

constexpr int BLOCK = 16, EDGE = BLOCK * TILE;

extern "C" __global__ void register_tile(Counted<float>* y, const Counted<float>* a, const Counted<float>* b, int M,
                                         int N, int K) {
  __shared__ Counted<float> as[EDGE][BLOCK];  // [m][k]
  __shared__ Counted<float> bs[BLOCK][EDGE];  // [k][n]
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int m = blockIdx.y * EDGE + ty, n = blockIdx.x * EDGE + tx;
  float sum = 0.f;
  for (int first = 0; first < K; first += BLOCK) {
    as[ty][tx] = m < M && first + tx < K ? a[m * K + first + tx] : 0.f;
    bs[ty][tx] = first + ty < K && n < N ? b[(first + ty) * N + n] : 0.f;
    __syncthreads();
    for (int k = 0; k < BLOCK; k++) sum = fmaf(as[ty][k], bs[k][tx], sum);
    __syncthreads();
  }
  if (m < M && n < N) y[m * N + n] = sum;
}
