// largest_f32: most[n] is raised to the bits of the largest abs(inp[n,i]); NaN is the largest
//              rescale: out[n,p,c] = inp[n,p,c] * factors[n] in OUT, zero in the padding; factors[n] = 2^k with
//              2^(exponent-1) <= 2^k * most[n] < 2^exponent, factors[N + n] = 2^(k - growth), what a product's results
//              have, which may be 2^growth times as large
// Layouts:  inp (N,HW,inp_pitch) float, what lies behind its channels is zero; out (N,HW,out_pitch), of pairs all of hi,
//           then all of lo; out_pitch a multiple of 8, inp_pitch of 4; factors (2,N). largest_f32: inp (N,E).
// Mapping:  largest_f32: grid (slices, N), a block has a slice of 16384 elements, a thread 4 at a time where E is a
//           multiple of 4. rescale: grid (blocks, N), a thread 8 neighbouring channels of a pixel.
// Tiles:    OUT (3): 1 float16, 3 pair of float16.
// Shared:   largest_f32 32 bytes, rescale none; 256 threads.
// Cost:     reads and writes each element once.
// Edges:    any N, E and HW. Factors: see image_factor.cuh. maxima[n] is raised to the bits of the largest magnitude
//           stored, of an image of zeros to those of 2^(exponent-1): only what has lost bits, or is no number, is out of
//           the range of pairs.
// Why:      gradients are 1e-5 and less, where float16 has few bits. They are linear in what they come from: a power of
//           two for each image comes out again exactly, and a pair keeps 22 bits of all that is 2^-18 of the largest or
//           more.
#include "block_reduce.cuh"
#include "image_factor.cuh"

#ifndef OUT
#define OUT 3
#endif

constexpr int THREADS = 256;
constexpr int WIDTH = 8;      // channels of a thread
constexpr int SLICE = 16384;  // elements of a block of largest_f32

// The largest magnitude of a slice, as this thread sees it.
template <int STEP>
__device__ __forceinline__ float largest_of(const float* inp, int E) {
  const int begin = static_cast<int>(blockIdx.x) * SLICE + STEP * static_cast<int>(threadIdx.x);
  float most = 0.f;
  UNROLL
  for (int i = 0; i < SLICE; i += STEP * THREADS) {
    if (begin + i >= E) continue;
    float v[4] = {};
    if (STEP == 4)
      unpack4(v, load4(inp + begin + i));
    else
      v[0] = inp[begin + i];
    UNROLL
    for (int k = 0; k < STEP; k++) most = max_nan(most, fabsf(v[k]));
  }
  return most;
}

extern "C" __global__ void __launch_bounds__(THREADS)
largest_f32(unsigned* __restrict__ most, const float* __restrict__ inp, int E) {
  __shared__ float scratch[THREADS / 32];
  inp += static_cast<long long>(blockIdx.y) * E;
  const float own = E % 4 == 0 ? largest_of<4>(inp, E) : largest_of<1>(inp, E);
  const float found = block_reduce<true, THREADS / 32>(own, scratch);
  if (threadIdx.x == 0) atomicMax(most + blockIdx.y, __float_as_uint(found));
}

extern "C" __global__ void __launch_bounds__(THREADS)
rescale(void* __restrict__ out, float* __restrict__ factors, unsigned* __restrict__ maxima,
        const float* __restrict__ inp, const float* __restrict__ most, int HW, int inp_pitch, int out_pitch,
        int exponent, int growth) {
  const ImageFactor factor(most[blockIdx.y], exponent, growth);
  if (blockIdx.x == 0 && threadIdx.x == 0) factor.store(factors, maxima, blockIdx.y, gridDim.y);
  const int index = blockIdx.x * THREADS + threadIdx.x, vectors = out_pitch / WIDTH;
  const int pixel = index / vectors, c = index % vectors * WIDTH;
  if (pixel >= HW) return;
  const long long row = static_cast<long long>(blockIdx.y) * HW + pixel;
  const long long plane = static_cast<long long>(gridDim.y) * HW * out_pitch;
  float v[WIDTH] = {};
  UNROLL
  for (int i = 0; i < WIDTH; i += 4) {
    if (c + i >= inp_pitch) continue;
    float four[4];
    unpack4(four, load4(inp + row * inp_pitch + c + i));
    UNROLL
    for (int j = 0; j < 4; j++) v[i + j] = four[j] * factor.of_image;
  }
  store_halves<OUT, WIDTH>(out, row * out_pitch + c, plane, v);
}
