// conv_registers_f32: out[oc,p] = sum over k of weight[oc,k] * column(k,p), where column(k,p) is the input that tap k =
//                     (c,kh,kw) meets at pixel p = (oh,ow): inp[c, oh*SH-PT+kh, ow*SW-PL+kw], zero outside
// Layouts:  inp (C,H,W), weight (OC,K), K = C*KERNEL_H*KERNEL_W, out (OC,OH*OW), float. The columns are never stored.
// Mapping:  implicit GEMM. Block: 64 output channels x 64 pixels, the sum in steps of TILE_K. Thread: 8 channels x 4
//           pixels, 16 threads wide: its channels are 8 apart, its pixels 16, so that a warp's reads do not collide.
// Tiles:    KERNEL_H (3), KERNEL_W (3), TILE_K (16).
// Shared:   4*TILE_K*(65 + 64) bytes, static; 128 threads.
// Cost:     12 loads of 4 bytes from shared memory for 32 FFMA of a thread, where one output a thread needs 64; a
//           weight comes from memory OH*OW/64 times, a pixel KERNEL_H*KERNEL_W*OC/64 times.
// Teaches:  the step that makes a matrix product fast: a value in a register is used 4 or 8 times. Small maps and few
//           channels leave multiprocessors idle: 512 channels of 14x14 are 32 blocks.
#include "ladder/columns.cuh"

constexpr int TILE_OC = 64, TILE_PX = 64;
constexpr int THREAD_OC = 8, THREAD_PX = 4;
constexpr int ACROSS = TILE_PX / THREAD_PX, DOWN = TILE_OC / THREAD_OC;  // threads of a block
constexpr int THREADS = ACROSS * DOWN;
static_assert(THREADS % TILE_PX == 0 && TILE_K * TILE_PX % THREADS == 0, "a thread loads one column, in whole rounds");
static_assert(TILE_K * TILE_OC % THREADS == 0, "weights are loaded in whole rounds");

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_registers_f32(float* __restrict__ out,
                                                                            const float* __restrict__ inp,
                                                                            const float* __restrict__ weight, int C,
                                                                            int H, int W, int OC, int OH, int OW,
                                                                            int SH, int SW, int PT, int PL) {
  __shared__ float weights[TILE_K][TILE_OC + 1];  // one more: a column is written by neighbours without collisions
  __shared__ float pixels[TILE_K][TILE_PX];
  const int tid = threadIdx.x, tx = tid % ACROSS, ty = tid / ACROSS;
  const int p0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC;
  const Column column(inp, C, H, W, OH, OW, SH, SW, PT, PL, p0 + tid % TILE_PX);
  float acc[THREAD_OC][THREAD_PX];
  UNROLL
  for (int i = 0; i < THREAD_OC; i++) {
    UNROLL
    for (int j = 0; j < THREAD_PX; j++) acc[i][j] = 0.f;
  }
  for (int k0 = 0; k0 < column.K; k0 += TILE_K) {
    UNROLL
    for (int round = 0; round < TILE_K * TILE_OC / THREADS; round++) {
      const int i = round * THREADS + tid, k = k0 + i % TILE_K, oc = oc0 + i / TILE_K;
      weights[i % TILE_K][i / TILE_K] = k < column.K && oc < OC ? weight[(long long)oc * column.K + k] : 0.f;
    }
    UNROLL
    for (int round = 0; round < TILE_K * TILE_PX / THREADS; round++) {
      const int k = round * (THREADS / TILE_PX) + tid / TILE_PX;
      pixels[k][tid % TILE_PX] = column.value(k0 + k);
    }
    __syncthreads();  // the step's operands are there
    UNROLL
    for (int kk = 0; kk < TILE_K; kk++) {
      float a[THREAD_OC], b[THREAD_PX];
      UNROLL
      for (int i = 0; i < THREAD_OC; i++) a[i] = weights[kk][ty + i * DOWN];
      UNROLL
      for (int j = 0; j < THREAD_PX; j++) b[j] = pixels[kk][tx + j * ACROSS];
      UNROLL
      for (int i = 0; i < THREAD_OC; i++) {
        LANES
        for (int j = 0; j < THREAD_PX; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
      }
    }
    __syncthreads();  // everybody has read them
  }
  UNROLL
  for (int i = 0; i < THREAD_OC; i++) {
    UNROLL
    for (int j = 0; j < THREAD_PX; j++) {
      const int oc = oc0 + ty + i * DOWN, p = p0 + tx + j * ACROSS;
      if (oc < OC && p < OH * OW) out[(long long)oc * OH * OW + p] = acc[i][j];
    }
  }
}
