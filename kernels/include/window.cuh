// Sliding windows over a map, with strides, dilations and padding: which of a window's elements lie inside.
#pragma once

#include "common.cuh"

// Elements first..end-1 of a window, along one dimension.
struct Span {
  int first, end;
  __device__ __forceinline__ int count() const { return end - first; }
};

// Of `count` elements from `start` on, `step` apart, those that lie at low..high-1.
__device__ __forceinline__ Span span_inside(int start, int step, int count, int low, int high) {
  const int first = start < low ? (low - start + step - 1) / step : 0;
  const int end = start < high ? min(count, (high - start + step - 1) / step) : 0;
  return {first, max(first, end)};
}
