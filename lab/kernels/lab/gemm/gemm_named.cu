// gemm_named: y[n,o,pixel] = sum over tap of weight[o,tap] * columns[n,tap,pixel]
// Layouts:  weight (OC,taps), columns (N,taps,pixels), made by im2col_taps of im2col.cu; y (N,OC,pixels), all float.
// Mapping:  as gemm_shared: a thread computes one output, a block BLOCK x BLOCK (16) of them, taps in steps of BLOCK.
// Shared:   8*BLOCK*BLOCK bytes; BLOCK*BLOCK threads.
// Cost:     as gemm_shared: per output 2*taps FLOP, 2*taps/BLOCK loads from global memory, 2*taps from shared memory.
// Teaches:  Local variables for the operands are not a use of registers: an operand passes through a register anyway,
//           with a name or without. The compiler makes the same machine code of this and of gemm_shared. Registers help
//           when a value stays in one and is used again: gemm_register.
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 16
#endif

constexpr int THREADS = BLOCK * BLOCK;

extern "C" __global__ void __launch_bounds__(THREADS) gemm_named(float* __restrict__ y,
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
      for (int tap = 0; tap < BLOCK; tap++) {
        const float a = filters[ty][tap];
        const float b = matrix[tap][tx];
        sum = fmaf(a, b, sum);
      }
    }
    __syncthreads();  // all have read them: the next round may write
  }
  if (output < OC && pixel < pixels) y[((long long)n * OC + output) * pixels + pixel] = sum;
}
