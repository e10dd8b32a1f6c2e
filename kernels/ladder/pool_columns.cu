// pool_columns_f32: out[c,oh,ow] = max over kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw], clipped to the map
// Layouts:  inp (C,H,W), out (C,OH,OW), float.
// Mapping:  block: a channel; thread: an output column (then ow + blockDim.x, ...), from top to bottom.
// Cost:     KH*KW loads an output; neighbouring threads read SW floats apart.
// Teaches:  a maximum begins at minus infinity. The published kernel began at 0, which gives 0 for a window of negative
//           numbers; it was right by luck alone, because every pool of a VGG follows a ReLU.
#include "common.cuh"

extern "C" __global__ void pool_columns_f32(float* __restrict__ out, const float* __restrict__ inp, int H, int W,
                                            int OH, int OW, int KH, int KW, int SH, int SW, int PT, int PL) {
  const float* map = inp + (long long)blockIdx.x * H * W;
  float* y = out + (long long)blockIdx.x * OH * OW;
  for (int ow = threadIdx.x; ow < OW; ow += blockDim.x)
    for (int oh = 0; oh < OH; oh++) {
      float largest = -INFINITY;
      for (int kh = 0; kh < KH; kh++)
        for (int kw = 0; kw < KW; kw++) {
          const int row = oh * SH - PT + kh, column = ow * SW - PL + kw;
          if ((unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W)
            largest = max_nan(largest, map[row * W + column]);
        }
      y[oh * OW + ow] = largest;
    }
}
