// gemm_shared: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  a thread computes one output; a block BLOCK x BLOCK (16) of them, pixels along x; grid (pixels, OC, N). The
//           taps go by in steps of BLOCK: each thread fetches one element of both operands' tiles.
// Shared:   8*BLOCK*BLOCK bytes; BLOCK*BLOCK threads.
// Cost:     per output: 2*taps FLOP, 2*taps/BLOCK loads from global memory, 2*taps from shared memory.
// Teaches:  What a block's threads read in common is fetched once: BLOCK times fewer global loads. Shared memory still
//           delivers a number for each operation. With one output channel nothing is common, and all rows of threads
//           but the first only help to fetch: a thread without an output multiplies nothing.
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 16
#endif

constexpr int THREADS = BLOCK * BLOCK;

extern "C" __global__ void __launch_bounds__(THREADS) gemm_shared(float* __restrict__ y,
                                                                  const float* __restrict__ weight,
                                                                  const float* __restrict__ columns, int OC, int taps,
                                                                  int pixels) {
  __shared__ float filters[BLOCK][BLOCK];  // [output][tap]
  __shared__ float matrix[BLOCK][BLOCK];   // [tap][pixel]
  const int tx = threadIdx.x, ty = threadIdx.y, n = blockIdx.z;
  const int pixel = blockIdx.x * BLOCK + tx, output = blockIdx.y * BLOCK + ty;
  float sum = 0.f;
  for (int first = 0; first < taps; first += BLOCK) {
    const bool has_filter = output < OC && first + tx < taps, has_column = first + ty < taps && pixel < pixels;
    filters[ty][tx] = has_filter ? weight[(long long)output * taps + first + tx] : 0.f;
    matrix[ty][tx] = has_column ? columns[((long long)n * taps + first + ty) * pixels + pixel] : 0.f;
    __syncthreads();  // the tiles are full
    if (output < OC && pixel < pixels) {
      UNROLL
      for (int tap = 0; tap < BLOCK; tap++) sum = fmaf(filters[ty][tap], matrix[tap][tx], sum);
    }
    __syncthreads();  // all have read them: the next round may write
  }
  if (output < OC && pixel < pixels) y[((long long)n * OC + output) * pixels + pixel] = sum;
}
