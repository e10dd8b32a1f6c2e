// largest_slices_f32: parts[n,s] = the largest abs(inp[n,i]) of slice s; NaN if one of them is
//                     image_factors: factors[n] = 2^k with 2^14 <= 2^k * the largest parts[n,s] < 2^15; factors[N + n] =
//                     2^(k - growth), what a product's results have, which may be 2^growth times as large
//                     rescale: out[n,p,c] = inp[n,p,c] * factors[n] as a pair of float16, zero in the padding
// Layouts:  inp (N,HW,inp_pitch) float, what lies behind its channels is zero; out (N,HW,out_pitch) of hi, then of lo,
//           out_pitch a multiple of 8, inp_pitch of 4; parts (N,slices) float; factors (2,N). largest_slices: inp (N,E),
//           E a multiple of 4.
// Mapping:  largest_slices: a block has a slice of 16384 elements, a thread 4 at a time. image_factors: a block an image.
//           rescale: grid (blocks, N), a thread 8 neighbouring channels of a pixel.
// Tiles:    none.
// Shared:   32 bytes, rescale none; 256 threads.
// Cost:     reads and writes each element once.
// Edges:    any N, E and HW. k is 0 where the largest is zero, infinite or NaN, and else such that both factors lie
//           between 2^-126 and 2^126. maxima[n] is raised to the bits of the largest magnitude stored, of an image of
//           zeros to those of 2^14: only what has lost bits, or is no number, is out of the range of pairs.
// Why:      gradients are 1e-5 and less, where a pair of float16 has few bits. They are linear in what they come from: a
//           power of two for each image comes out again exactly, and a pair keeps 22 bits of all that is 2^-18 of the
//           largest or more.
#include "block_reduce.cuh"
#include "stored.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 8;      // channels of a thread
constexpr int SLICE = 16384;  // elements of a block of largest_slices
constexpr int EXPONENT = 15;  // the largest magnitude is below 2^EXPONENT

__device__ __forceinline__ float power_of_two(int k) { return __uint_as_float(static_cast<unsigned>(k + 127) << 23); }

extern "C" __global__ void __launch_bounds__(THREADS)
largest_slices_f32(float* __restrict__ parts, const float* __restrict__ inp, int E) {
  __shared__ float scratch[THREADS / 32];
  inp += static_cast<long long>(blockIdx.y) * E;
  const int begin = static_cast<int>(blockIdx.x) * SLICE + 4 * threadIdx.x;
  float most = 0.f;
  UNROLL
  for (int i = 0; i < SLICE; i += 4 * THREADS) {
    if (begin + i >= E) continue;
    float v[4];
    unpack4(v, load4(inp + begin + i));
    UNROLL
    for (int k = 0; k < 4; k++) most = max_nan(most, fabsf(v[k]));
  }
  most = block_reduce<true, THREADS / 32>(most, scratch);
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = most;
}

extern "C" __global__ void __launch_bounds__(THREADS)
image_factors(float* __restrict__ factors, unsigned* __restrict__ maxima, const float* __restrict__ parts, int slices,
              int growth) {
  __shared__ float scratch[THREADS / 32];
  parts += static_cast<long long>(blockIdx.x) * slices;
  float most = 0.f;
  for (int s = threadIdx.x; s < slices; s += THREADS) most = max_nan(most, parts[s]);
  most = block_reduce<true, THREADS / 32>(most, scratch);
  if (threadIdx.x != 0) return;
  const int found = static_cast<int>(__float_as_uint(most) >> 23 & 0xff);  // 2^(found-127) <= most, but for tiny ones
  const int wanted = EXPONENT - (found - 126), least = max(-126, growth - 126), highest = min(126, growth + 126);
  const int k = most == 0.f || found == 0xff ? 0 : min(max(wanted, least), highest);
  factors[blockIdx.x] = power_of_two(k);
  factors[gridDim.x + blockIdx.x] = power_of_two(k - growth);
  const float largest = most == 0.f ? power_of_two(EXPONENT - 1) : round_to_f16(most * power_of_two(k));
  atomicMax(maxima + blockIdx.x, __float_as_uint(largest));
}

extern "C" __global__ void __launch_bounds__(THREADS)
rescale(void* __restrict__ out, const float* __restrict__ inp, const float* __restrict__ factors, int HW, int inp_pitch,
        int out_pitch) {
  const int index = blockIdx.x * THREADS + threadIdx.x, vectors = out_pitch / WIDTH;
  const int pixel = index / vectors, c = index % vectors * WIDTH;
  if (pixel >= HW) return;
  const long long row = static_cast<long long>(blockIdx.y) * HW + pixel;
  const long long plane = static_cast<long long>(gridDim.y) * HW * out_pitch;
  const float factor = factors[blockIdx.y];
  float v[WIDTH] = {}, high[WIDTH], low[WIDTH];
  UNROLL
  for (int i = 0; i < WIDTH; i += 4) {
    if (c + i >= inp_pitch) continue;
    float four[4];
    unpack4(four, load4(inp + row * inp_pitch + c + i));
    UNROLL
    for (int j = 0; j < 4; j++) v[i + j] = four[j] * factor;
  }
  UNROLL
  for (int i = 0; i < WIDTH; i++) {
    high[i] = round_to_f16(v[i]);
    low[i] = v[i] - high[i];
  }
  const long long at = row * out_pitch + c;
  PackedValues<F16, WIDTH>(high, high).store(out, at, WIDTH);
  PackedValues<F16, WIDTH>(low, low).store(out, plane + at, WIDTH);
}
