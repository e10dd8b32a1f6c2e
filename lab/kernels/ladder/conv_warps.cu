// conv_warps_f32: out[oc,p] = sum over k of weight[k,oc] * column(k,p), columns as in conv_registers.cu
// Layouts:  as conv_vectors.cu: inp (C,H,W), weight packed (K up to TILE_K, OC up to 64), out (OC,OH*OW), float.
// Mapping:  Block: 64 output channels x 128 pixels, 2 x 2 warps of 32 x 64. The lanes of a warp form 4 x 8, a thread
//           has 8 channels x 8 pixels: twice 4 side by side, 16 channels and 32 pixels apart.
// Tiles:    KERNEL_H (3), KERNEL_W (3), TILE_K (16).
// Shared:   4*TILE_K*(64 + 128) bytes, static; 128 threads.
// Cost:     4 loads of 16 bytes from shared memory for 64 FFMA of a thread. A load of a warp meets 4 (weights) or 8
//           (pixels) different addresses, 128 bytes at most: one turn of the 32 banks, where conv_vectors.cu needs two.
// Teaches:  a tile of registers exists for a warp, too: nearly square, it reads least for what it multiplies. The
//           price: half as many blocks, and at batch 1 the small maps had too few already.
#include "ladder/columns.cuh"

constexpr int TILE_OC = 64, TILE_PX = 128;
constexpr int WARP_OC = 32, WARP_PX = 64;
constexpr int THREAD = 8;                  // channels of a thread, and pixels
constexpr int LANES_OC = 4, LANES_PX = 8;  // of a warp
constexpr int WARPS_PX = TILE_PX / WARP_PX;
constexpr int THREADS = 32 * WARPS_PX * (TILE_OC / WARP_OC);
constexpr int QUADS = TILE_OC / 4;  // of a row of weights
static_assert(LANES_OC * LANES_PX == 32 && LANES_OC * THREAD == WARP_OC && LANES_PX * THREAD == WARP_PX, "a warp");
static_assert(THREADS == TILE_PX, "a thread loads one column");
static_assert(TILE_K * QUADS % THREADS == 0, "weights are loaded in whole rounds");

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_warps_f32(float* __restrict__ out,
                                                                        const float* __restrict__ inp,
                                                                        const float* __restrict__ weight, int C, int H,
                                                                        int W, int OC, int OH, int OW, int SH, int SW,
                                                                        int PT, int PL) {
  __shared__ __align__(16) float weights[TILE_K][TILE_OC];
  __shared__ __align__(16) float pixels[TILE_K][TILE_PX];
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int p0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC, pitch = gridDim.y * TILE_OC;
  const int px = warp % WARPS_PX * WARP_PX + lane % LANES_PX * 4;  // the first of the thread's, in the tile
  const int oc = warp / WARPS_PX * WARP_OC + lane / LANES_PX * 4;
  const Column column(inp, C, H, W, OH, OW, SH, SW, PT, PL, p0 + tid);
  float acc[THREAD][THREAD];
  UNROLL
  for (int i = 0; i < THREAD; i++) {
    UNROLL
    for (int j = 0; j < THREAD; j++) acc[i][j] = 0.f;
  }
  for (int k0 = 0; k0 < column.K; k0 += TILE_K) {
    UNROLL
    for (int round = 0; round < TILE_K * QUADS / THREADS; round++) {
      const int i = round * THREADS + tid, k = i / QUADS, first = i % QUADS * 4;
      store4(&weights[k][first], load4(weight + (long long)(k0 + k) * pitch + oc0 + first));
    }
    UNROLL
    for (int i = 0; i < TILE_K; i++) pixels[i][tid] = column.value(k0 + i);
    __syncthreads();  // the step's operands are there
    UNROLL
    for (int kk = 0; kk < TILE_K; kk++) {
      float a[THREAD], b[THREAD];
      UNROLL
      for (int i = 0; i < THREAD; i += 4) unpack4(a + i, load4(&weights[kk][oc + i * LANES_OC]));
      UNROLL
      for (int j = 0; j < THREAD; j += 4) unpack4(b + j, load4(&pixels[kk][px + j * LANES_PX]));
      UNROLL
      for (int i = 0; i < THREAD; i++) {
        LANES
        for (int j = 0; j < THREAD; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
      }
    }
    __syncthreads();  // everybody has read them
  }
  UNROLL
  for (int i = 0; i < THREAD; i++) {
    const int channel = oc0 + oc + i / 4 * 4 * LANES_OC + i % 4;
    if (channel >= OC) continue;
    UNROLL
    for (int j = 0; j < THREAD; j += 4) {
      const int p = p0 + px + j * LANES_PX;
      store_pixels(out + (long long)channel * OH * OW + p, acc[i] + j, OH * OW - p, OH * OW % 4 == 0);
    }
  }
}
