// softmax_f32: out[n,i] = exp(inp[n,i] - max_j inp[n,j]) / sum_j exp(inp[n,j] - max)
// Layouts:  inp (N,inp_pitch) float, out (N,out_pitch) float, F <= both pitches.
// Mapping:  one block of 256 threads per row; thread t owns columns t, t+256, ...
// Tiles:    none.
// Shared:   32 bytes; 256 threads.
// Cost:     about 50 FLOP per element (two exponentials); reads the row three times (from cache after the first),
//           writes it once.
// Sums:     each thread in order, lanes by a butterfly, warps in order: the same bits on every device.
// Edges:    any F; columns F..out_pitch-1 are written as zero. A NaN in a row makes the whole row NaN.
// Why:      some exporters end the network in a softmax; it is never worth more than one simple kernel.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// Combines one value of every thread of the block; everybody gets the result.
template <bool MAXIMUM>
__device__ __forceinline__ float block_reduce(float value, float* scratch) {
  UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = MAXIMUM ? max_nan(value, other) : value + other;
  }
  __syncthreads();  // the previous reduction has been read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();  // all warps have written
  value = scratch[0];
  for (int i = 1; i < WARPS; i++) value = MAXIMUM ? max_nan(value, scratch[i]) : value + scratch[i];
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_f32(float* __restrict__ out, const float* __restrict__ inp, int F, int inp_pitch, int out_pitch) {
  __shared__ float scratch[WARPS];
  const float* x = inp + (long long)blockIdx.x * inp_pitch;
  float* y = out + (long long)blockIdx.x * out_pitch;
  float highest = -INFINITY;
  for (int i = threadIdx.x; i < F; i += THREADS) highest = max_nan(highest, x[i]);
  highest = block_reduce<true>(highest, scratch);
  float sum = 0.f;
  for (int i = threadIdx.x; i < F; i += THREADS) sum += exp_f32(x[i] - highest);
  sum = block_reduce<false>(sum, scratch);
  for (int i = threadIdx.x; i < out_pitch; i += THREADS) y[i] = i < F ? exp_f32(x[i] - highest) / sum : 0.f;
}
