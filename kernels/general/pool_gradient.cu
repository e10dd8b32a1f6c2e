// pool_gradient_f32: out[n,h,w,c] = sum of gradient[n,oh,ow,c] over the windows whose first maximum is inp[n,h,w,c], or
//                    of gradient[n,oh,ow,c] / count over the windows that hold pixel (h, w), for the mean
// Layouts:  inp, out (N,H,W,C) float, gradient (N,OH,OW,C) float; C a multiple of 4.
// Mapping:  one thread per 4 channels of a pixel of the map, channels fastest: a warp reads 512 consecutive bytes per
//           window element.
// Tiles:    AVERAGE (0): 0 for the gradient of a maximum, 1 for that of a mean.
// Shared:   none; 256 threads.
// Cost:     for each window that holds a pixel, KH*KW comparisons (max) or a division (mean); of 2x2 windows, stride 2,
//           reads each value of the map four times, three of them from the caches, and writes it once.
// Sums:     windows in the order of the pixel's place in them, row by row.
// Edges:    any window, stride, dilation, padding, as of pool_f32. The first maximum in the order of rows wins, as in
//           torch; of several NaN the last. A window of nothing but padding hands nothing on. No atomics: the same
//           bits in every run.
// Why:      each pixel looks up what it gets, so nothing is stored beside the map that the forward run stored anyway.
#include "window.cuh"

#ifndef AVERAGE
#define AVERAGE 0
#endif

struct Geometry {
  int H, W, C, OH, OW, KH, KW, SH, SW, DH, DW, PT, PL, PB, PR;
};

// The place of the window that holds `position` as its element k; -1 if there is none.
__device__ __forceinline__ int window_of(int position, int k, int stride, int dilation, int pad, int windows) {
  const int start = position + pad - k * dilation;
  return start >= 0 && start % stride == 0 && start / stride < windows ? start / stride : -1;
}

// Which element of a window is the maximum, for 4 channels.
__device__ __forceinline__ void first_maximum(int (&at)[4], const float* map, const Geometry& g, int top, int left) {
  const Span rows = span_inside(top, g.DH, g.KH, 0, g.H), columns = span_inside(left, g.DW, g.KW, 0, g.W);
  float best[4];
  UNROLL
  for (int v = 0; v < 4; v++) at[v] = -1;
  for (int kh = rows.first; kh < rows.end; kh++)
    for (int kw = columns.first; kw < columns.end; kw++) {
      float x[4];
      unpack4(x, load4(map + ((long long)(top + kh * g.DH) * g.W + left + kw * g.DW) * g.C));
      UNROLL
      for (int v = 0; v < 4; v++)
        if (at[v] < 0 || x[v] > best[v] || x[v] != x[v]) {
          best[v] = x[v];
          at[v] = kh * g.KW + kw;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) pool_gradient_f32(
    float* __restrict__ out, const float* __restrict__ gradient, const float* __restrict__ inp, int pixels, int H, int W,
    int C, int OH, int OW, int KH, int KW, int SH, int SW, int DH, int DW, int PT, int PL, int PB, int PR,
    int count_include_pad GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const Geometry g = {H, W, C, OH, OW, KH, KW, SH, SW, DH, DW, PT, PL, PB, PR};
  const unsigned quads = C / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;  // fits: the planner sees to it
  const int pixel = index / quads, c = index % quads * 4;        // pixel counts (n, h, w)
  if (pixel >= pixels) return;
  const int w = pixel % W, h = pixel / W % H, n = pixel / W / H;
  const float* map = inp + (long long)n * H * W * C + c;
  float sum[4] = {};
  for (int kh = 0; kh < KH; kh++) {
    const int oh = window_of(h, kh, SH, DH, PT, OH);
    if (oh < 0) continue;
    for (int kw = 0; kw < KW; kw++) {
      const int ow = window_of(w, kw, SW, DW, PL, OW);
      if (ow < 0) continue;
      const int top = oh * SH - PT, left = ow * SW - PL;
      float dy[4];
      unpack4(dy, load4(gradient + (((long long)n * OH + oh) * OW + ow) * C + c));
      if (AVERAGE) {
        const int low_h = count_include_pad ? -PT : 0, high_h = count_include_pad ? H + PB : H;
        const int low_w = count_include_pad ? -PL : 0, high_w = count_include_pad ? W + PR : W;
        const int count =
            span_inside(top, DH, KH, low_h, high_h).count() * span_inside(left, DW, KW, low_w, high_w).count();
        UNROLL
        for (int v = 0; v < 4; v++) sum[v] += dy[v] / count;
      } else {
        int at[4];
        first_maximum(at, map, g, top, left);
        UNROLL
        for (int v = 0; v < 4; v++)
          if (at[v] == kh * KW + kw) sum[v] += dy[v];
      }
    }
  }
  store4(out + (long long)pixel * C + c, pack4(sum));
}
