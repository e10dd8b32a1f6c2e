// gemm_register: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  a block of BLOCK x BLOCK (16) threads computes EDGE x EDGE outputs, EDGE = BLOCK*TILE; a thread TILE x TILE
//           (4) of them, BLOCK apart so that a warp's accesses stay side by side; grid (pixels, OC, N). The taps go by
//           in steps of BLOCK.
// Shared:   8*BLOCK*EDGE bytes; BLOCK*BLOCK threads.
// Cost:     per output: 2*taps FLOP, 2*taps/EDGE loads from global memory, 2*taps/TILE from shared memory.
// Teaches:  A register tile: 2*TILE numbers from shared memory stay in registers for TILE*TILE products. That takes the
//           load off shared memory, which is what holds gemm_shared back. It needs output channels: with one of them
//           the other EDGE-1 rows of the tile are computed for nothing.
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 16
#endif
#ifndef TILE
#define TILE 4
#endif

constexpr int THREADS = BLOCK * BLOCK;
constexpr int EDGE = BLOCK * TILE;  // outputs along each side of a block's tile

extern "C" __global__ void __launch_bounds__(THREADS) gemm_register(float* __restrict__ y,
                                                                    const float* __restrict__ weight,
                                                                    const float* __restrict__ columns, int OC, int taps,
                                                                    int pixels) {
  __shared__ float filters[EDGE][BLOCK];  // [output][tap]
  __shared__ float matrix[BLOCK][EDGE];   // [tap][pixel]
  const int tx = threadIdx.x, ty = threadIdx.y, n = blockIdx.z;
  const int pixel = blockIdx.x * EDGE + tx, output = blockIdx.y * EDGE + ty;  // the first of the thread's
  float sum[TILE][TILE] = {};                                                 // [output][pixel]
  for (int first = 0; first < taps; first += BLOCK) {
    UNROLL
    for (int i = 0; i < TILE; i++) {
      const int o = output + i * BLOCK, p = pixel + i * BLOCK;
      const bool has_filter = o < OC && first + tx < taps, has_column = first + ty < taps && p < pixels;
      filters[ty + i * BLOCK][tx] = has_filter ? weight[(long long)o * taps + first + tx] : 0.f;
      matrix[ty][tx + i * BLOCK] = has_column ? columns[((long long)n * taps + first + ty) * pixels + p] : 0.f;
    }
    __syncthreads();  // the tiles are full
    UNROLL
    for (int tap = 0; tap < BLOCK; tap++) {
      float a[TILE], b[TILE];  // loaded once, used TILE times
      UNROLL
      for (int i = 0; i < TILE; i++) {
        a[i] = filters[ty + i * BLOCK][tap];
        b[i] = matrix[tap][tx + i * BLOCK];
      }
      UNROLL
      for (int i = 0; i < TILE; i++) {
        LANES
        for (int j = 0; j < TILE; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
      }
    }
    __syncthreads();  // all have read them: the next round may write
  }
  UNROLL
  for (int i = 0; i < TILE; i++) {
    UNROLL
    for (int j = 0; j < TILE; j++) {
      const int o = output + i * BLOCK, p = pixel + j * BLOCK;
      if (o < OC && p < pixels) y[((long long)n * OC + o) * pixels + p] = sum[i][j];
    }
  }
}
