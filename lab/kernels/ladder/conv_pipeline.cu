// conv_pipeline_f32: out[oc,p] = sum over k of weight[k,oc] * column(k,p), columns as in conv_registers.cu
// Layouts:  as conv_vectors.cu: inp (C,H,W), weight packed (K up to TILE_K, OC up to 64), out (OC,OH*OW), float.
// Mapping:  as conv_swizzle.cu; but the tiles are copied by cp.async, two steps ahead of their use.
// Tiles:    KERNEL_H (3), KERNEL_W (3), TILE_K (16), STAGES (3).
// Shared:   4*STAGES*TILE_K*(64 + 128) bytes, static: 36 KB; 128 threads.
// Cost:     the same loads; one barrier for a step instead of two; three tiles of each in shared memory. A pixel's taps
//           come from different places, 4 bytes each, so tap k of row r lies at k ^ (r/2 % 4 * 4 + r/8 % 4): the 32
//           pixels of a warp in 32 banks, and a thread, whose rows are 8 apart, knows the order in a quad beforehand.
// Teaches:  with few warps nothing else hides the 500 to 700 cycles that memory takes: what is needed in two steps is
//           asked for now, and goes to shared memory past the registers. Below sm_80 and on a CPU it is a plain copy.
#include "ladder/columns.cuh"

#ifndef STAGES
#define STAGES 3
#endif

constexpr int TILE_OC = 64, TILE_PX = 128;
constexpr int WARP_OC = 32, WARP_PX = 64;
constexpr int THREAD = 8;                  // channels of a thread, and pixels
constexpr int LANES_OC = 4, LANES_PX = 8;  // of a warp
constexpr int WARPS_PX = TILE_PX / WARP_PX;
constexpr int THREADS = 32 * WARPS_PX * (TILE_OC / WARP_OC);
constexpr int QUADS = TILE_OC / 4;  // of a row of weights
static_assert(LANES_OC * LANES_PX == 32 && LANES_OC * THREAD == WARP_OC && LANES_PX * THREAD == WARP_PX, "a warp");
static_assert(THREADS == TILE_PX, "a thread copies one column");
static_assert(TILE_K == 16, "the exclusive or is for rows of four quads");
static_assert(TILE_K * QUADS % THREADS == 0, "weights are copied in whole rounds");
static_assert(STAGES >= 2, "one stage is filled while another is read");

struct Stage {
  __align__(16) float weights[TILE_K][TILE_OC];
  __align__(16) float pixels[TILE_PX][TILE_K];
};

// Where tap k of a pixel lies in its row. The first 8 pixels of 32 (px is one) have their quads in order, the pixel 8*j
// further on has tap v of a quad at v ^ j % 4.
__device__ __forceinline__ int swizzled(int pixel, int k) { return k ^ (pixel / 2 % 4 * 4 + pixel / 8 % 4); }

__device__ __forceinline__ void copy(Stage& stage, const Column& column, const float* weight, int pitch, int k0) {
  const int tid = threadIdx.x;
  UNROLL
  for (int round = 0; round < TILE_K * QUADS / THREADS; round++) {
    const int i = round * THREADS + tid, k = i / QUADS, first = i % QUADS * 4;
    copy16_async(&stage.weights[k][first], weight + (long long)(k0 + k) * pitch + first, true);
  }
  UNROLL
  for (int k = 0; k < TILE_K; k++)
    copy4_async(&stage.pixels[tid][swizzled(tid, k)], column.address(k0 + k), column.inside(k0 + k));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_pipeline_f32(float* __restrict__ out,
                                                                           const float* __restrict__ inp,
                                                                           const float* __restrict__ weight, int C,
                                                                           int H, int W, int OC, int OH, int OW, int SH,
                                                                           int SW, int PT, int PL) {
  __shared__ Stage stages[STAGES];
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
  UNROLL
  for (int ahead = 0; ahead < STAGES - 1; ahead++) {
    if (ahead * TILE_K < column.K) copy(stages[ahead], column, weight + oc0, pitch, ahead * TILE_K);
    copy_async_commit();
  }
  int current = 0;
  for (int k0 = 0; k0 < column.K; k0 += TILE_K) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the step's operands are there, and nobody reads the stage that is filled next
    const int next = current == 0 ? STAGES - 1 : current - 1, later = k0 + (STAGES - 1) * TILE_K;
    if (later < column.K) copy(stages[next], column, weight + oc0, pitch, later);
    copy_async_commit();
    const Stage& stage = stages[current];
    UNROLL
    for (int k = 0; k < TILE_K; k += 4) {
      float b[THREAD][4];
      UNROLL
      for (int j = 0; j < THREAD; j++) unpack4(b[j], load4(&stage.pixels[px + j * LANES_PX][swizzled(px, k)]));
      UNROLL
      for (int v = 0; v < 4; v++) {
        float a[THREAD];
        UNROLL
        for (int i = 0; i < THREAD; i += 4) unpack4(a + i, load4(&stage.weights[k + v][oc + i * LANES_OC]));
        UNROLL
        for (int j = 0; j < THREAD; j++) {
          LANES
          for (int i = 0; i < THREAD; i++) acc[j][i] = fmaf(a[i], b[j][v ^ j % 4], acc[j][i]);
        }
      }
    }
    current = current == STAGES - 1 ? 0 : current + 1;
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
