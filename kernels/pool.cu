// pool_f32: out[n,oh,ow,c] = max or mean of inp[n, oh*SH-PT+kh, ow*SW-PL+kw, c] over the window, clipped to the map
// Layouts:  inp (N,H,W,C) float, out (N,OH,OW,C) float; C a multiple of 4.
// Mapping:  one thread per 4 channels of an output pixel, channels fastest: a warp reads 512 consecutive bytes per
//           window element.
// Tiles:    AVERAGE (0): 0 takes the maximum, 1 the mean.
// Shared:   none; 256 threads.
// Cost:     KH*KW-1 comparisons or additions per output; reads N*H*W*C*4 bytes where windows do not overlap, writes
//           N*OH*OW*C*4.
// Edges:    any window, stride, padding. The maximum starts at minus infinity over the clipped window and keeps NaN;
//           the mean divides by the elements inside the map, or by KH*KW with count_include_pad. Rows and columns that
//           no window reaches are dropped.
// Why:      VGG's pools after a convolution are fused into it; this one serves every other pool.
#include "common.cuh"

#ifndef AVERAGE
#define AVERAGE 0
#endif

extern "C" __global__ void __launch_bounds__(256)
pool_f32(float* __restrict__ out, const float* __restrict__ inp, int outputs, int H, int W, int C, int OH, int OW,
         int KH, int KW, int SH, int SW, int PT, int PL, int count_include_pad) {
  const unsigned quads = C / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;  // fits: the planner sees to it
  const int pixel = index / quads, c = index % quads * 4;        // pixel counts (n, oh, ow)
  if (pixel >= outputs) return;
  const int ow = pixel % OW, oh = pixel / OW % OH, n = pixel / OW / OH;
  const int top = oh * SH - PT, left = ow * SW - PL;
  const int h0 = max(top, 0), h1 = min(top + KH, H), w0 = max(left, 0), w1 = min(left + KW, W);
  float result[4];
  UNROLL
  for (int v = 0; v < 4; v++) result[v] = AVERAGE ? 0.f : -INFINITY;
  for (int h = h0; h < h1; h++)
    for (int w = w0; w < w1; w++) {
      float x[4];
      unpack4(x, load4(inp + (((long long)n * H + h) * W + w) * C + c));
      UNROLL
      for (int v = 0; v < 4; v++) result[v] = AVERAGE ? result[v] + x[v] : max_nan(result[v], x[v]);
    }
  if (AVERAGE) {
    const float count = count_include_pad ? KH * KW : (h1 - h0) * (w1 - w0);
    UNROLL
    for (int v = 0; v < 4; v++) result[v] = result[v] / count;
  }
  store4(out + (long long)pixel * C + c, pack4(result));
}
