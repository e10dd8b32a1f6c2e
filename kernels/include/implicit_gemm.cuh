// A convolution as its threads see it: its shape and the end of a sum, of conv_igemm and conv_direct, and the map of an
// output pixel, of conv_mma, too.
#pragma once

#include "common.cuh"

struct ConvShape {
  int rows;        // output pixels that take part: N*OH*OW
  int H, W, C;     // input map
  int OH, OW, OC;  // output map before pooling; OH and OW even with POOL
  int KH, KW, SH, SW, PT, PL;
};

// What becomes of a sum: bias, activation; padded channels are zero even where infinity met a padded weight.
__device__ __forceinline__ float finish_conv(float sum, float bias, bool real_channel, Activation activation) {
  const float biased = sum + bias;
  return real_channel ? activation(biased) : 0.f;
}

__device__ __forceinline__ float window_max(const float* first, int pitch) {
  return max_nan(max_nan(first[0], first[pitch]), max_nan(first[2 * pitch], first[3 * pitch]));
}

// Output pixel that row `row` of an implicit GEMM stands for. By windows, rows 4i..4i+3 are the window of pooled pixel i.
template <bool BY_WINDOW>
__device__ __forceinline__ void row_to_pixel(int OH, int OW, int row, int& n, int& oh, int& ow) {
  if (BY_WINDOW) {
    const int pooled_w = OW / 2, pooled_hw = pooled_w * (OH / 2);
    const int window = row / 4, pixel = window % pooled_hw;
    n = window / pooled_hw;
    oh = pixel / pooled_w * 2 + row % 4 / 2;
    ow = pixel % pooled_w * 2 + row % 2;
  } else {
    const int hw = OH * OW, pixel = row % hw;
    n = row / hw;
    oh = pixel / OW;
    ow = pixel % OW;
  }
}
