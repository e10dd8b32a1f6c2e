// conv_shared_f32: out[oc,oh,ow] = sum over c, kh, kw of inp[c, oh*SH-PT+kh, ow*SW-PL+kw] * weight[oc,c,kh,kw]
// Layouts:  inp (C,H,W), weight (OC,C,KH,KW), out (OC,OH,OW), float; what lies outside of inp is zero.
// Mapping:  a thread for each output. Block: 16x16 pixels (blockIdx.x, y) of an output channel (blockIdx.z).
// Tiles:    TILE_C (8): channels whose part of the map, the tile with what its windows reach, is loaded at once.
// Shared:   dynamic: TILE_C*(ROWS*COLUMNS + KH*KW) floats, ROWS = 15*SH + KH, COLUMNS = 15*SW + KW (3x3: 10.4 KB).
// Cost:     a pixel comes from memory 1.3 times for 9 products (3x3) instead of 9 times; two loads from shared memory
//           for each product, and two barriers for every TILE_C channels.
// Teaches:  a tile in shared memory is no gain by itself: L1 is as fast and had these pixels already, without barriers.
//           To gain, a value must be read less often than it is used, and for that it must be in a register.
#include "common.cuh"

#ifndef TILE_C
#define TILE_C 8
#endif

constexpr int TILE = 16;  // rows and columns of outputs
constexpr int THREADS = TILE * TILE;

extern "C" __global__ void __launch_bounds__(THREADS) conv_shared_f32(float* __restrict__ out,
                                                                      const float* __restrict__ inp,
                                                                      const float* __restrict__ weight, int C, int H,
                                                                      int W, int OH, int OW, int KH, int KW, int SH,
                                                                      int SW, int PT, int PL) {
  DYNAMIC_SHARED(float, tile);
  const int rows = (TILE - 1) * SH + KH, columns = (TILE - 1) * SW + KW, taps = KH * KW;
  float* const filter = tile + TILE_C * rows * columns;
  const int tid = threadIdx.y * TILE + threadIdx.x;
  const int ow = blockIdx.x * TILE + threadIdx.x, oh = blockIdx.y * TILE + threadIdx.y;
  const int top = blockIdx.y * TILE * SH - PT, left = blockIdx.x * TILE * SW - PL;
  float sum = 0.f;
  for (int c0 = 0; c0 < C; c0 += TILE_C) {
    const int channels = min(TILE_C, C - c0);
    for (int c = 0; c < channels; c++)
      for (int r = threadIdx.y; r < rows; r += TILE)
        for (int q = threadIdx.x; q < columns; q += TILE) {
          const int row = top + r, column = left + q;
          const bool inside = (unsigned)row < (unsigned)H && (unsigned)column < (unsigned)W;
          tile[(c * rows + r) * columns + q] = inside ? inp[((long long)(c0 + c) * H + row) * W + column] : 0.f;
        }
    for (int i = tid; i < channels * taps; i += THREADS)
      filter[i] = weight[((long long)blockIdx.z * C + c0) * taps + i];
    __syncthreads();  // the channels are there
    for (int c = 0; c < channels; c++) {
      const float* x = tile + (c * rows + threadIdx.y * SH) * columns + threadIdx.x * SW;
      for (int kh = 0; kh < KH; kh++)
        for (int kw = 0; kw < KW; kw++) sum = fmaf(x[kh * columns + kw], filter[c * taps + kh * KW + kw], sum);
    }
    __syncthreads();  // everybody has read them
  }
  if (ow < OW && oh < OH) out[((long long)blockIdx.z * OH + oh) * OW + ow] = sum;
}
