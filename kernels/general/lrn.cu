// lrn_f32: out[p,c] = inp[p,c] / (bias + alpha / size * sum_j inp[p,j]^2)^beta over the `size` channels j around c
// Layouts:  inp and out: (pixels,CP) float, CP >= channels.
// Mapping:  one thread per value, channels fastest: neighbouring threads read overlapping windows, from cache.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     about 2*size + 100 FLOP per value, in double; reads and writes each value once.
// Edges:    any size: floor((size-1)/2) channels before c and ceil((size-1)/2) behind it, those that there are. Padding
//           channels become zero. NaN reaches the windows that hold it.
// Why:      AlexNet and its time have it. In double no sum of squares overflows or needs groups, and libraries whose pow
//           differs in its last bits give the same float.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
lrn_f32(float* __restrict__ out, const float* __restrict__ inp, int count, int channels, int CP, int size, float alpha,
        float beta, float bias GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= static_cast<unsigned>(count)) return;
  const int c = index % CP;
  const float* pixel = inp + (index - c);
  float y = 0.f;
  if (c < channels) {
    double sum = 0;
    const int first = max(c - (size - 1) / 2, 0), last = min(c + size / 2, channels - 1);
    for (int j = first; j <= last; j++) sum += static_cast<double>(pixel[j]) * static_cast<double>(pixel[j]);
    const double scale = static_cast<double>(bias) + static_cast<double>(alpha) / size * sum;
    y = static_cast<float>(static_cast<double>(pixel[c]) / pow(scale, static_cast<double>(beta)));
  }
  out[index] = y;
}
