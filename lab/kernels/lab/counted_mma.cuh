// One product of the tensor cores, which the check of an exercise can count, and the float16 numbers that it takes.
#pragma once

#include "mma.cuh"
#include "stored.cuh"
#include "lab/counted.cuh"

// sum[16 rows][8 columns] += a[16][16] * b[8][16], by the 32 threads of a warp together: mma.sync.m16n8k16. All values
// are float16, two in a word, k innermost. Of lane 4 * g + t
//   a[0] is word t of row g, a[1] word t of row g + 8, a[2] word t + 4 of row g, a[3] word t + 4 of row g + 8;
//   b[0] is word t of column g, b[1] word t + 4 of column g;
//   sum[0], sum[1] are row g and columns 2t, 2t + 1; sum[2], sum[3] the same of row g + 8.
__device__ __forceinline__ void multiply_16x8x16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef COUNTED
  note(NOTED_PRODUCT, 0);
#endif
  float sums[1][1][4];
  unsigned as[1][4], bs[1][2];
  for (int i = 0; i < 4; i++) sums[0][0][i] = sum[i], as[0][i] = a[i];
  for (int i = 0; i < 2; i++) bs[0][i] = b[i];
  add_products<Fp16>(sums, as, bs);
  for (int i = 0; i < 4; i++) sum[i] = sums[0][0][i];
}

// The two numbers of a word.
__device__ __forceinline__ float low(unsigned word) { return f16_value(static_cast<unsigned short>(word & 0xffff)); }
__device__ __forceinline__ float high(unsigned word) { return f16_value(static_cast<unsigned short>(word >> 16)); }
