// The map of an output pixel as a convolution's threads see it, of conv_igemm and conv_mma.
#pragma once

#include "common.cuh"

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
