// conv_tree_f32: out[oc,oh,ow] = sum over c, kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw] * weight[oc,c,kh,kw]
// gemm_tree_f32: out[o] = sum over k of inp[k] * weight[o,k]
// Layouts:  inp (C,H,W), weight (OC,C,KH,KW), (OUT,K), all float; what lies outside of inp is zero; PADDED: unread.
// Mapping:  conv: block (oc, y): an output channel, every gridDim.y-th of its pixels; thread: an input channel (then
//           c + blockDim.x, ...), whose products it adds itself. gemm: block: an output; thread: every blockDim.x-th
//           product. The sums of the threads are added as a tree.
// Shared:   dynamic: a float for each thread.
// Cost:     conv: for every output KH*KW products of a thread, log2(C) additions, and a barrier more.
// Teaches:  512 numbers are added in 9 steps instead of 511. The block still waits for memory and barriers at each
//           pixel, and a GPU is busy with several hundred outputs at a time where it could be with a hundred thousand.
#include "common.cuh"

#ifndef PADDED
#define PADDED 0
#endif

// What lies at (row, column) of a map, zero outside of it.
__device__ __forceinline__ float at(const float* map, int H, int W, int row, int column) {
  return PADDED || ((unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W) ? map[row * W + column] : 0.f;
}

// The sum of all threads' values, in thread 0. Each step adds the upper half of what is left to the lower.
__device__ __forceinline__ float block_sum(float* sums, float value) {
  const int threads = blockDim.x;
  int half = 1;
  while (half * 2 < threads) half *= 2;
  sums[threadIdx.x] = value;
  for (; half > 0; half /= 2) {
    __syncthreads();  // the step before is done
    const int other = threadIdx.x + half;
    if ((int)threadIdx.x < half && other < threads) sums[threadIdx.x] += sums[other];
  }
  return sums[threadIdx.x];
}

extern "C" __global__ void conv_tree_f32(float* __restrict__ out, const float* __restrict__ inp,
                                         const float* __restrict__ weight, int C, int H, int W, int OH, int OW, int KH,
                                         int KW, int SH, int SW, int PT, int PL) {
  DYNAMIC_SHARED(float, sums);
  const int taps = KH * KW;
  const float* filter = weight + (long long)blockIdx.x * C * taps;
  for (int pixel = blockIdx.y; pixel < OH * OW; pixel += gridDim.y) {
    const int top = pixel / OW * SH - PT, left = pixel % OW * SW - PL;
    float sum = 0.f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      const float* map = inp + (long long)c * H * W;
      for (int kh = 0; kh < KH; kh++)
        for (int kw = 0; kw < KW; kw++)
          sum = fmaf(at(map, H, W, top + kh, left + kw), filter[c * taps + kh * KW + kw], sum);
    }
    sum = block_sum(sums, sum);
    if (threadIdx.x == 0) out[(long long)blockIdx.x * OH * OW + pixel] = sum;
    __syncthreads();  // the last step has been read
  }
}

extern "C" __global__ void gemm_tree_f32(float* __restrict__ out, const float* __restrict__ inp,
                                         const float* __restrict__ weight, int K) {
  DYNAMIC_SHARED(float, sums);
  const float* w = weight + (long long)blockIdx.x * K;
  float sum = 0.f;
  for (int k = threadIdx.x; k < K; k += blockDim.x) sum = fmaf(inp[k], w[k], sum);
  sum = block_sum(sums, sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
