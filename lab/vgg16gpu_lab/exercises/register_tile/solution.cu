// Solution of register-tile: y[m,n] = sum over k of a[m,k] * b[k,n]
// Layouts:  float. a (M,K), b (K,N), y (M,N).
// Launch:   blocks of 16x16 threads; a block computes EDGE x EDGE outputs, EDGE = 16 * TILE.
#include "lab/counted.cuh"

#define TILE 4

constexpr int BLOCK = 16, EDGE = BLOCK * TILE;

extern "C" __global__ void register_tile(Counted<float>* y, const Counted<float>* a, const Counted<float>* b, int M,
                                         int N, int K) {
  __shared__ Counted<float> as[EDGE][BLOCK];  // [m][k]
  __shared__ Counted<float> bs[BLOCK][EDGE];  // [k][n]
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int m = blockIdx.y * EDGE + ty, n = blockIdx.x * EDGE + tx;  // the first of this thread's outputs
  float sum[TILE][TILE] = {};
  for (int first = 0; first < K; first += BLOCK) {
    UNROLL
    for (int i = 0; i < TILE; i++) {
      const int row = m + i * BLOCK, column = n + i * BLOCK;
      as[ty + i * BLOCK][tx] = row < M && first + tx < K ? a[row * K + first + tx] : 0.f;
      bs[ty][tx + i * BLOCK] = first + ty < K && column < N ? b[(first + ty) * N + column] : 0.f;
    }
    __syncthreads();
    for (int k = 0; k < BLOCK; k++) {
      float ra[TILE], rb[TILE];  // each is loaded once and used TILE times
      UNROLL
      for (int i = 0; i < TILE; i++) {
        ra[i] = as[ty + i * BLOCK][k];
        rb[i] = bs[k][tx + i * BLOCK];
      }
      UNROLL
      for (int i = 0; i < TILE; i++) {
        UNROLL
        for (int j = 0; j < TILE; j++) sum[i][j] = fmaf(ra[i], rb[j], sum[i][j]);
      }
    }
    __syncthreads();
  }
  UNROLL
  for (int i = 0; i < TILE; i++) {
    UNROLL
    for (int j = 0; j < TILE; j++)
      if (m + i * BLOCK < M && n + j * BLOCK < N) y[(m + i * BLOCK) * N + n + j * BLOCK] = sum[i][j];
  }
}
