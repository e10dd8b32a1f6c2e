// power_of_two_f32: out[n] = 2^k with 2^(exponent-1) <= 2^k * the largest parts[n,s] < 2^exponent
// Layouts:  parts (N,slices) float, see rescale.cu; out (N,pitch) float, what lies behind the first is zero.
// Mapping:  a block an image.
// Tiles:    none.
// Shared:   32 bytes; 256 threads.
// Cost:     reads each part once.
// Edges:    any N. k is 0 where the largest is zero, infinite or NaN, and else between -126 and 126.
// Why:      gradients are 1e-5 and less, where float16 has few bits or none. They are linear in what they come from: a
//           factor for each image, a power of two, brings them to where float16 has all its bits, and is taken out
//           again exactly. Its bits come from the largest magnitude alone: the order of the maxima does not matter.
#include "block_reduce.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
power_of_two_f32(float* __restrict__ out, const float* __restrict__ parts, int slices, int exponent, int pitch) {
  __shared__ float scratch[THREADS / 32];
  parts += static_cast<long long>(blockIdx.x) * slices;
  float most = 0.f;
  for (int s = threadIdx.x; s < slices; s += THREADS) most = max_nan(most, parts[s]);
  most = block_reduce<true, THREADS / 32>(most, scratch);
  const int found = static_cast<int>(__float_as_uint(most) >> 23 & 0xff);  // 2^(found-127) <= most, but for tiny ones
  const int k = min(max(exponent - (found - 126), -126), 126);
  const float factor = most == 0.f || found == 0xff ? 1.f : __uint_as_float(static_cast<unsigned>(k + 127) << 23);
  for (int i = threadIdx.x; i < pitch; i += THREADS) out[static_cast<long long>(blockIdx.x) * pitch + i] = i ? 0.f : factor;
}
