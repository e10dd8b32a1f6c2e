// pool_stored: out[n,oh,ow,c] = max of inp[n,2oh+i,2ow+j,c] over i, j in {0, 1}, as the tensor cores store values
// Layouts:  inp (N,H,W,pitch), out (N,OH,OW,pitch) of ELEMENT, pitch a multiple of 8; pairs lie as two such planes, all of
//           hi before all of lo, and both have the same scales. maxima (N): bits of floats.
// Mapping:  grid (blocks, N); one thread per 8 channels of an output pixel, channels fastest: 16 bytes of a plane at a
//           time.
// Tiles:    ELEMENT (1): 1 float16, 2 bfloat16, 3 pair of float16.
// Shared:   32 bytes; 256 threads.
// Cost:     3 comparisons per output; reads each value once, writes a quarter as many.
// Edges:    any H and W, the last row and column of odd ones are dropped. NaN stays NaN. float16 and pairs raise
//           maxima[n] to the largest magnitude stored of image n (a pair's high half; NaN is the largest).
// Why:      where somebody wants the value between a convolution and its pool, these are not one kernel, and nothing
//           should become float32 on the way: the maximum of rounded values is the rounded maximum.
#include "stored.cuh"

#ifndef ELEMENT
#define ELEMENT 1
#endif

constexpr int THREADS = 256;
constexpr int VECTOR = 8;  // values of 16 bytes
constexpr int PLANES = ELEMENT == F16_PAIR ? 2 : 1;
constexpr int HALF = ELEMENT == BF16 ? BF16 : F16;

__device__ __forceinline__ float value_of(unsigned bits) {
  return HALF == BF16 ? __uint_as_float(bits << 16) : f16_value(static_cast<unsigned short>(bits));
}

// 8 channels of a pixel, as they are stored and as numbers.
struct Pixel {
  unsigned short half[PLANES][VECTOR];
  float value[VECTOR];

  __device__ __forceinline__ Pixel(const unsigned short* source, long long plane) {
    UNROLL
    for (int p = 0; p < PLANES; p++) {
      const uint4 words = *reinterpret_cast<const uint4*>(source + p * plane);
      const unsigned word[4] = {words.x, words.y, words.z, words.w};
      UNROLL
      for (int i = 0; i < VECTOR; i++) half[p][i] = static_cast<unsigned short>(word[i / 2] >> i % 2 * 16);
    }
    UNROLL
    for (int i = 0; i < VECTOR; i++) {
      value[i] = value_of(half[0][i]);
      if constexpr (PLANES == 2) value[i] += value_of(half[PLANES - 1][i]);
    }
  }

  __device__ __forceinline__ void raise_to(const Pixel& other) {
    UNROLL
    for (int i = 0; i < VECTOR; i++) {
      if (value[i] > other.value[i] || value[i] != value[i]) continue;
      value[i] = other.value[i];
      UNROLL
      for (int p = 0; p < PLANES; p++) half[p][i] = other.half[p][i];
    }
  }

  __device__ __forceinline__ void store(unsigned short* target, long long plane) const {
    UNROLL
    for (int p = 0; p < PLANES; p++) {
      unsigned word[4];
      UNROLL
      for (int w = 0; w < 4; w++) word[w] = half[p][2 * w] | static_cast<unsigned>(half[p][2 * w + 1]) << 16;
      *reinterpret_cast<uint4*>(target + p * plane) = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }

  __device__ __forceinline__ unsigned largest() const {
    unsigned bits = 0;
    UNROLL
    for (int i = 0; i < VECTOR; i++) bits = max(bits, __float_as_uint(value_of(half[0][i])) & 0x7fffffffu);
    return bits;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
pool_stored(unsigned short* __restrict__ out, const unsigned short* __restrict__ inp, unsigned* __restrict__ maxima,
            int H, int W, int pitch, int OH, int OW) {
  __shared__ unsigned scratch[THREADS / 32];
  const long long n = blockIdx.y, images = gridDim.y;
  const int vectors = pitch / VECTOR, index = blockIdx.x * THREADS + threadIdx.x;
  const int pixel = index / vectors, c = index % vectors * VECTOR;
  unsigned largest = 0;
  if (pixel < OH * OW) {
    const long long row = static_cast<long long>(W) * pitch, inp_plane = images * H * row;
    const unsigned short* source = inp + n * H * row + pixel / OW * 2 * row + pixel % OW * 2 * pitch + c;
    Pixel best(source, inp_plane);
    best.raise_to(Pixel(source + pitch, inp_plane));
    best.raise_to(Pixel(source + row, inp_plane));
    best.raise_to(Pixel(source + row + pitch, inp_plane));
    const long long pixels = static_cast<long long>(OH) * OW;
    best.store(out + (n * pixels + pixel) * pitch + c, images * pixels * pitch);
    largest = best.largest();
  }
  if constexpr (ELEMENT != BF16) {  // which holds what float32 holds
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
    __syncthreads();  // all warps have written
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < THREADS / 32; warp++) largest = max(largest, scratch[warp]);
    atomicMax(maxima + n, largest);
  }
}
