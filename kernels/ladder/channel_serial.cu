// conv_serial_f32: out[oc,oh,ow] = sum over c, kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw] * weight[oc,c,kh,kw]
// gemm_serial_f32: out[o] = sum over k of inp[k] * weight[o,k]
// Layouts:  inp (C,H,W), weight (OC,C,KH,KW), (OUT,K), all float; what lies outside of inp is zero.
// Mapping:  conv: block: an output channel, all its pixels one after the other; thread: the products of an input
//           channel (then c + blockDim.x, ...). gemm: block: an output; thread: every blockDim.x-th product. Thread 0
//           adds.
// Shared:   dynamic: C*KH*KW floats, rounded up to fours (512x3x3: 18 KB), gemm: one for each thread.
// Cost:     conv: C*KH*KW additions one after the other by one thread, and two barriers, for every output.
// Teaches:  sums stay on the GPU, so nothing but maps crosses the bus; now one thread in 512 works, and the additions
//           of a VGG16 in its busiest blocks are 80 million in a row.
#include "common.cuh"

// What lies at (row, column) of a map, zero outside of it.
__device__ __forceinline__ float at(const float* map, int H, int W, int row, int column) {
  return (unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W ? map[row * W + column] : 0.f;
}

extern "C" __global__ void conv_serial_f32(float* __restrict__ out, const float* __restrict__ inp,
                                           const float* __restrict__ weight, int C, int H, int W, int OH, int OW,
                                           int KH, int KW, int SH, int SW, int PT, int PL) {
  DYNAMIC_SHARED(float, products);
  const int taps = KH * KW;
  const float* filter = weight + (long long)blockIdx.x * C * taps;
  for (int pixel = 0; pixel < OH * OW; pixel++) {
    const int top = pixel / OW * SH - PT, left = pixel % OW * SW - PL;
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
    __syncthreads();  // thread 0 has read them
  }
}

extern "C" __global__ void gemm_serial_f32(float* __restrict__ out, const float* __restrict__ inp,
                                           const float* __restrict__ weight, int K) {
  DYNAMIC_SHARED(float, sums);
  const float* w = weight + (long long)blockIdx.x * K;
  float sum = 0.f;
  for (int k = threadIdx.x; k < K; k += blockDim.x) sum = fmaf(inp[k], w[k], sum);
  sums[threadIdx.x] = sum;
  __syncthreads();  // all sums are there
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int t = 0; t < (int)blockDim.x; t++) total += sums[t];
    out[blockIdx.x] = total;
  }
}
