// row_sum_f32: out[n] = the sum of row n of up to 8 operands, in their order
// Layouts:  operands (N,count) float, each with a count of its own, out (N) float.
// Mapping:  a block of 256 threads an image.
// Tiles:    none.
// Shared:   32 bytes.
// Cost:     an addition for each value; reads each once.
// Sums:     each thread in order, lanes by a butterfly, warps in order: the same bits in every run and on every device,
//           whatever the batch is. No atomics.
// Edges:    any N and counts; operands of count 0 are not read.
// Why:      the parts of a loss come from blocks that know nothing of each other: one pass adds up those of all layers.
#include "block_reduce.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int MAX_ROWS = 8;

extern "C" __global__ void __launch_bounds__(THREADS)
row_sum_f32(float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b,
            const float* __restrict__ c, const float* __restrict__ d, const float* __restrict__ e,
            const float* __restrict__ f, const float* __restrict__ g, const float* __restrict__ h, int count_a,
            int count_b, int count_c, int count_d, int count_e, int count_f, int count_g, int count_h GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ float scratch[WARPS];
  const float* const operand[MAX_ROWS] = {a, b, c, d, e, f, g, h};
  const int count[MAX_ROWS] = {count_a, count_b, count_c, count_d, count_e, count_f, count_g, count_h};
  const long long n = blockIdx.x;
  float sum = 0.f;
  UNROLL
  for (int k = 0; k < MAX_ROWS; k++)
    for (int i = threadIdx.x; i < count[k]; i += THREADS) sum += operand[k][n * count[k] + i];
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) out[n] = sum;
}
