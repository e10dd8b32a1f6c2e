// conv_serial_f32: out[oc,oh,ow] = sum over c, kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw] * weight[oc,c,kh,kw]
// gemm_serial_f32: out[o] = sum over k of inp[k] * weight[o,k]
// Layouts:  inp (C,H,W), weight (OC,C,KH,KW), (OUT,K), all float; what lies outside of inp is zero; PADDED: unread.
// Mapping:  conv: block (oc, y): an output channel, every gridDim.y-th of its pixels; thread: the products of an input
//           channel (then c + blockDim.x, ...). gemm: block: an output; thread: every 512th product. Thread 0 adds.
// Shared:   conv: a float for each product. FIXED, as published: [512][3][3], for 3x3 and up to 512 channels; else as
//           much as the launch says. gemm: 512 floats, in which the threads add up.
// Cost:     conv: C*KH*KW additions one after the other by one thread, and two barriers, for every output.
// Teaches:  sums stay on the GPU, so nothing but maps crosses the bus; now one thread in 512 works, and the additions
//           of a VGG16 in its busiest blocks are 80 million in a row.
#include "common.cuh"

#ifndef FIXED
#define FIXED 0
#endif
#ifndef PADDED
#define PADDED 0
#endif
#define THREADS 512  // of a block of the gemm

// What lies at (row, column) of a map, zero outside of it.
__device__ __forceinline__ float at(const float* map, int H, int W, int row, int column) {
  return PADDED || ((unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W) ? map[row * W + column] : 0.f;
}

extern "C" __global__ void conv_serial_f32(float* __restrict__ out, const float* __restrict__ inp,
                                           const float* __restrict__ weight, int C, int H, int W, int OH, int OW,
                                           int KH, int KW, int SH, int SW, int PT, int PL) {
#if FIXED
  __shared__ float shared[512][3][3];
  float* const products = &shared[0][0][0];
  KH = KW = 3;
#else
  DYNAMIC_SHARED(float, products);
#endif
  const int taps = KH * KW;
  const float* filter = weight + (long long)blockIdx.x * C * taps;
  for (int pixel = blockIdx.y; pixel < OH * OW; pixel += gridDim.y) {
    const int top = pixel / OW * SH - PT, left = pixel % OW * SW - PL;
    __syncthreads();  // thread 0 has read those of the pixel before
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      const float* map = inp + (long long)c * H * W;
      for (int kh = 0; kh < KH; kh++)
        for (int kw = 0; kw < KW; kw++) {
          const int i = c * taps + kh * KW + kw;
          products[i] = at(map, H, W, top + kh, left + kw) * filter[i];
        }
    }
    __syncthreads();  // all products are there
    if (threadIdx.x == 0) {
      float sum = 0.f;
      for (int i = 0; i < C * taps; i++) sum += products[i];
      out[(long long)blockIdx.x * OH * OW + pixel] = sum;
    }
  }
}

extern "C" __global__ void gemm_serial_f32(float* __restrict__ out, const float* __restrict__ inp,
                                           const float* __restrict__ weight, int K) {
  __shared__ float shared[THREADS];
  const float* w = weight + (long long)blockIdx.x * K;
  if (threadIdx.x == 0)
    for (int t = 0; t < THREADS; t++) shared[t] = 0.f;
  __syncthreads();  // all are zero
  for (int k = threadIdx.x; k < K; k += THREADS) shared[threadIdx.x] = fmaf(inp[k], w[k], shared[threadIdx.x]);
  __syncthreads();  // all sums are there
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int t = 0; t < THREADS; t++) total += shared[t];
    out[blockIdx.x] = total;
  }
}
