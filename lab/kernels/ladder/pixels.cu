// conv_pixels_f32: out[oc,oh,ow] = sum over c, kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw] * weight[oc,c,kh,kw]
// pool_pixels_f32: out[c,oh,ow] = max over kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw], clipped to the map
// Layouts:  inp (C,H,W), weight (OC,C,KH,KW), out (OC,OH,OW), float; what lies outside of inp is zero (conv).
// Mapping:  a thread for each output. Block: 16x16 pixels (blockIdx.x, y) of an output channel (blockIdx.z).
// Cost:     two loads for each product: a pixel, which neighbours read beside it, and a weight, the same for the block.
// Teaches:  independent outputs need no sum across threads, no barrier, and there are 3 million of them in the first
//           layers. Lanes that are neighbours in the map read whole lines. What is left is two loads for one FFMA.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256, 1) conv_pixels_f32(float* __restrict__ out,
                                                                     const float* __restrict__ inp,
                                                                     const float* __restrict__ weight, int C, int H,
                                                                     int W, int OH, int OW, int KH, int KW, int SH,
                                                                     int SW, int PT, int PL) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x, oh = blockIdx.y * blockDim.y + threadIdx.y;
  if (ow >= OW || oh >= OH) return;
  const int top = oh * SH - PT, left = ow * SW - PL;
  const int first_row = max(0, -top), last_row = min(KH, H - top);
  const int first_column = max(0, -left), last_column = min(KW, W - left);
  const float* w = weight + (long long)blockIdx.z * C * KH * KW;
  const float* x = inp;
  float sum = 0.f;
  for (int c = 0; c < C; c++, x += (long long)H * W, w += KH * KW)
    for (int kh = first_row; kh < last_row; kh++)
      for (int kw = first_column; kw < last_column; kw++)
        sum = fmaf(x[(top + kh) * W + left + kw], w[kh * KW + kw], sum);
  out[((long long)blockIdx.z * OH + oh) * OW + ow] = sum;
}

extern "C" __global__ void __launch_bounds__(256) pool_pixels_f32(float* __restrict__ out,
                                                                  const float* __restrict__ inp, int H, int W, int OH,
                                                                  int OW, int KH, int KW, int SH, int SW, int PT,
                                                                  int PL) {
  const int ow = blockIdx.x * blockDim.x + threadIdx.x, oh = blockIdx.y * blockDim.y + threadIdx.y;
  if (ow >= OW || oh >= OH) return;
  const int top = oh * SH - PT, left = ow * SW - PL;
  const float* map = inp + (long long)blockIdx.z * H * W;
  float largest = -INFINITY;
  for (int row = max(0, top); row < min(H, top + KH); row++)
    for (int column = max(0, left); column < min(W, left + KW); column++)
      largest = max_nan(largest, map[row * W + column]);
  out[((long long)blockIdx.z * OH + oh) * OW + ow] = largest;
}
