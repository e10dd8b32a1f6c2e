// power_of_two_f32: out[n] = 2^k with 2^(exponent-1) <= 2^k * most[n] < 2^exponent
// Layouts:  most (N) float, the largest magnitude of each image: rescale.cu; out (N,pitch) float, what lies behind the
//           first is zero.
// Mapping:  a block an image.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     reads and writes a number for each image.
// Edges:    any N. k: see image_factor.cuh.
// Why:      gradients are 1e-5 and less, where float16 has few bits or none. They are linear in what they come from: a
//           factor for each image, a power of two, brings them to where float16 has all its bits, and is taken out
//           again exactly. Its bits come from the largest magnitude alone: the order of the maxima does not matter.
#include "image_factor.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
power_of_two_f32(float* __restrict__ out, const float* __restrict__ most, int exponent, int pitch) {
  const ImageFactor factor(most[blockIdx.x], exponent, 0);
  float* const row = out + static_cast<long long>(blockIdx.x) * pitch;
  for (int i = threadIdx.x; i < pitch; i += THREADS) row[i] = i ? 0.f : factor.of_image;
}
