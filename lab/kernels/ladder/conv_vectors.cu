// conv_vectors_f32: out[oc,p] = sum over k of weight[k,oc] * column(k,p), columns as in conv_registers.cu
// Layouts:  inp (C,H,W), weight packed once: (K rounded up to TILE_K, OC rounded up to 64) with zeros in the excess,
//           K = C*KERNEL_H*KERNEL_W, out (OC,OH*OW), float.
// Mapping:  as conv_registers.cu: 64 output channels x 64 pixels a block, 8 x 4 a thread; but the channels and the
//           pixels of a thread lie side by side.
// Tiles:    KERNEL_H (3), KERNEL_W (3), TILE_K (16).
// Shared:   4*TILE_K*(64 + 64) bytes, static; 128 threads.
// Cost:     3 loads of 16 bytes from shared memory for 32 FFMA of a thread, where 12 of 4 bytes stood. A load of four
//           numbers is one instruction, and 16 threads side by side read 256 bytes in two turns of the 32 banks.
// Teaches:  who moves 16 bytes at a time issues a quarter of the loads. It takes a layout in which the numbers lie side
//           by side: weights are turned once, on the host. Pixels of NCHW begin anywhere and still come one by one.
#include "ladder/columns.cuh"

constexpr int TILE_OC = 64, TILE_PX = 64;
constexpr int THREAD_OC = 8, THREAD_PX = 4;
constexpr int ACROSS = TILE_PX / THREAD_PX, DOWN = TILE_OC / THREAD_OC;  // threads of a block
constexpr int THREADS = ACROSS * DOWN;
constexpr int QUADS = TILE_OC / 4;  // of a row of weights
static_assert(THREADS % TILE_PX == 0 && TILE_K * TILE_PX % THREADS == 0, "a thread loads one column, in whole rounds");
static_assert(TILE_K * QUADS % THREADS == 0, "weights are loaded in whole rounds");

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_vectors_f32(float* __restrict__ out,
                                                                          const float* __restrict__ inp,
                                                                          const float* __restrict__ weight, int C,
                                                                          int H, int W, int OC, int OH, int OW, int SH,
                                                                          int SW, int PT, int PL) {
  __shared__ __align__(16) float weights[TILE_K][TILE_OC];
  __shared__ __align__(16) float pixels[TILE_K][TILE_PX];
  const int tid = threadIdx.x, tx = tid % ACROSS, ty = tid / ACROSS;
  const int p0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC, pitch = gridDim.y * TILE_OC;
  const Column column(inp, C, H, W, OH, OW, SH, SW, PT, PL, p0 + tid % TILE_PX);
  float acc[THREAD_OC][THREAD_PX];
  UNROLL
  for (int i = 0; i < THREAD_OC; i++) {
    UNROLL
    for (int j = 0; j < THREAD_PX; j++) acc[i][j] = 0.f;
  }
  for (int k0 = 0; k0 < column.K; k0 += TILE_K) {
    UNROLL
    for (int round = 0; round < TILE_K * QUADS / THREADS; round++) {
      const int i = round * THREADS + tid, k = i / QUADS, oc = i % QUADS * 4;
      store4(&weights[k][oc], load4(weight + (long long)(k0 + k) * pitch + oc0 + oc));
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
      for (int i = 0; i < THREAD_OC; i += 4) unpack4(a + i, load4(&weights[kk][ty * THREAD_OC + i]));
      unpack4(b, load4(&pixels[kk][tx * THREAD_PX]));
      UNROLL
      for (int i = 0; i < THREAD_OC; i++) {
        LANES
        for (int j = 0; j < THREAD_PX; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
      }
    }
    __syncthreads();  // everybody has read them
  }
  const int p = p0 + tx * THREAD_PX;
  UNROLL
  for (int i = 0; i < THREAD_OC; i++) {
    const int oc = oc0 + ty * THREAD_OC + i;
    if (oc < OC) store_pixels(out + (long long)oc * OH * OW + p, acc[i], OH * OW - p, OH * OW % 4 == 0);
  }
}
