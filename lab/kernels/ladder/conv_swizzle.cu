// conv_swizzle_f32: out[oc,p] = sum over k of weight[k,oc] * column(k,p), columns as in conv_registers.cu
// Layouts:  as conv_vectors.cu: inp (C,H,W), weight packed (K up to TILE_K, OC up to 64), out (OC,OH*OW), float.
// Mapping:  as conv_warps.cu; but a pixel's taps lie side by side in shared memory, and a thread's pixels are 8 apart.
// Tiles:    KERNEL_H (3), KERNEL_W (3), TILE_K (16).
// Shared:   4*TILE_K*(64 + 128) bytes, static; 128 threads.
// Cost:     4 stores of 16 bytes a thread for its column of 16 taps, where 16 of 4 bytes stood; loads as before. Rows
//           of 64 bytes put one quad of 8 pixels into 2 of the 8 groups of 4 banks: 4 turns. Quad q of row r lies at
//           q ^ (r/2 % 4), and the 8 pixels are in 8 groups: 1 turn, for the stores and for the loads.
// Teaches:  an exclusive or of column and row does what one more column did (conv_registers.cu), takes no memory, and
//           leaves every 16 bytes where 16 bytes may be read. What is not waited for cannot be won back, though.
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
static_assert(TILE_K == 16, "the exclusive or is for rows of four quads");
static_assert(TILE_K * QUADS % THREADS == 0, "weights are loaded in whole rounds");

// Where the four taps from k on of a pixel lie in its row.
__device__ __forceinline__ int swizzled(int pixel, int k) { return k ^ pixel / 2 % 4 * 4; }

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_swizzle_f32(float* __restrict__ out,
                                                                          const float* __restrict__ inp,
                                                                          const float* __restrict__ weight, int C,
                                                                          int H, int W, int OC, int OH, int OW, int SH,
                                                                          int SW, int PT, int PL) {
  __shared__ __align__(16) float weights[TILE_K][TILE_OC];
  __shared__ __align__(16) float pixels[TILE_PX][TILE_K];
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int p0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC, pitch = gridDim.y * TILE_OC;
  const int px = warp % WARPS_PX * WARP_PX + lane % LANES_PX;  // the first of the thread's, in the tile
  const int oc = warp / WARPS_PX * WARP_OC + lane / LANES_PX * 4;
  const Column column(inp, C, H, W, OH, OW, SH, SW, PT, PL, p0 + tid);
  float acc[THREAD][THREAD];  // of pixels, of channels
  UNROLL
  for (int j = 0; j < THREAD; j++) {
    UNROLL
    for (int i = 0; i < THREAD; i++) acc[j][i] = 0.f;
  }
  for (int k0 = 0; k0 < column.K; k0 += TILE_K) {
    UNROLL
    for (int round = 0; round < TILE_K * QUADS / THREADS; round++) {
      const int i = round * THREADS + tid, k = i / QUADS, first = i % QUADS * 4;
      store4(&weights[k][first], load4(weight + (long long)(k0 + k) * pitch + oc0 + first));
    }
    UNROLL
    for (int k = 0; k < TILE_K; k += 4) {
      float taps[4];
      UNROLL
      for (int v = 0; v < 4; v++) taps[v] = column.value(k0 + k + v);
      store4(&pixels[tid][swizzled(tid, k)], pack4(taps));
    }
    __syncthreads();  // the step's operands are there
    UNROLL
    for (int k = 0; k < TILE_K; k += 4) {
      float b[THREAD][4];
      UNROLL
      for (int j = 0; j < THREAD; j++) unpack4(b[j], load4(&pixels[px + j * LANES_PX][swizzled(px, k)]));
      UNROLL
      for (int v = 0; v < 4; v++) {
        float a[THREAD];
        UNROLL
        for (int i = 0; i < THREAD; i += 4) unpack4(a + i, load4(&weights[k + v][oc + i * LANES_OC]));
        UNROLL
        for (int j = 0; j < THREAD; j++) {
          LANES
          for (int i = 0; i < THREAD; i++) acc[j][i] = fmaf(a[i], b[j][v], acc[j][i]);
        }
      }
    }
    __syncthreads();  // everybody has read them
  }
  UNROLL
  for (int i = 0; i < THREAD; i++) {
    const int channel = oc0 + oc + i / 4 * 4 * LANES_OC + i % 4;
    UNROLL
    for (int j = 0; j < THREAD; j++) {
      const int p = p0 + px + j * LANES_PX;
      if (channel < OC && p < OH * OW) out[(long long)channel * OH * OW + p] = acc[j][i];
    }
  }
}
