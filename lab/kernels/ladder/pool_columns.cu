// pool_columns_f32: out[c,oh,ow] = max over kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw], clipped to the map
// Layouts:  inp (C,H,W), out (C,OH,OW), float.
// Mapping:  block: a channel; thread: an output column (then ow + blockDim.x, ...), from top to bottom.
// Cost:     KH*KW loads an output; neighbouring threads read SW floats apart.
// Teaches:  where a maximum begins. START_AT_ZERO: at 0, as published, with a reason: a ReLU comes before, so no number
//           is below. After anything else it has to be minus infinity, or windows of negative numbers give 0.
#include "common.cuh"

#ifndef START_AT_ZERO
#define START_AT_ZERO 0
#endif

extern "C" __global__ void pool_columns_f32(float* __restrict__ out, const float* __restrict__ inp, int H, int W,
                                            int OH, int OW, int KH, int KW, int SH, int SW, int PT, int PL) {
  const float* map = inp + (long long)blockIdx.x * H * W;
  float* y = out + (long long)blockIdx.x * OH * OW;
  for (int ow = threadIdx.x; ow < OW; ow += blockDim.x)
    for (int oh = 0; oh < OH; oh++) {
      float largest = START_AT_ZERO ? 0.f : -INFINITY;
      for (int kh = 0; kh < KH; kh++)
        for (int kw = 0; kw < KW; kw++) {
          const int row = oh * SH - PT + kh, column = ow * SW - PL + kw;
          if ((unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W)
            largest = max_nan(largest, map[row * W + column]);
        }
      y[oh * OW + ow] = largest;
    }
}
