// magnitudes_f32: out[b] = out[b] + the number of elements whose magnitude has the leading bits b (bits >> 13);
//                 largest = the bits of the largest magnitude, of these and earlier elements
// Layouts:  inp (pixels,CP) float, of which channels 0..C-1 count; out: a 64-bit number for the bits >> 13 of every
//           finite magnitude; largest: one word.
// Mapping:  thread t of block b owns elements 256 b + t, and so on by the size of the grid, 4 at a time.
// Tiles:    none.
// Shared:   40 KB: the bins of 10 octaves, to one above the first elements of the block; 256 threads.
// Cost:     reads each element once. Bin 0 (what a ReLU leaves of half of them) is counted in registers, the others by
//           an atomic addition to shared memory, what lies outside of the 10 octaves by one to global memory, as is
//           every bin of a block in the end. VGG16 on an H200: 13.5 M elements an image, 30 to 60 us.
// Edges:    any size and magnitude. NaN and infinities are in no bin, and make `largest` a number that is not finite.
//           Padding channels are not counted. Integers may be added in any order: counts are the same in every run.
// Why:      the scales of int8 come from how often each magnitude occurs (compiler/quantization/scheme.py). On the
//           host that took a minute for 500 images: 54 MB an image to be copied, put into another order and counted.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int AT_ONCE = 4;
constexpr int DROPPED_BITS = 13;  // of a float's 23: an octave has 1024 bins
constexpr int OCTAVE = 1 << (23 - DROPPED_BITS);
constexpr int WINDOW = 10 * OCTAVE;
constexpr unsigned INFINITE = 0x7f800000u, NOTHING = 0xffffffffu;

// The bits of up to AT_ONCE magnitudes from element i on; NOTHING for padding and what lies behind the last.
__device__ __forceinline__ void load(unsigned (&bits)[AT_ONCE], const float* inp, long long i, long long step,
                                     long long count, int C, int CP) {
  UNROLL
  for (int k = 0; k < AT_ONCE; k++, i += step)
    bits[k] = i < count && (C == CP || i % CP < C) ? __float_as_uint(inp[i]) & 0x7fffffffu : NOTHING;
}

extern "C" __global__ void __launch_bounds__(THREADS)
magnitudes_f32(unsigned long long* __restrict__ out, unsigned* __restrict__ largest, const float* __restrict__ inp,
              int pixels, int C, int CP) {
  __shared__ unsigned window[WINDOW];
  __shared__ unsigned first_largest, block_largest, block_zeros;
  const int tid = threadIdx.x;
  const long long count = static_cast<long long>(pixels) * CP, step = static_cast<long long>(gridDim.x) * THREADS;
  for (int b = tid; b < WINDOW; b += THREADS) window[b] = 0;
  if (tid == 0) first_largest = block_largest = block_zeros = 0;
  __syncthreads();  // all counts are zero
  long long i = static_cast<long long>(blockIdx.x) * THREADS + tid;
  unsigned bits[AT_ONCE], most = 0, zeros = 0;
  load(bits, inp, i, step, count, C, CP);
  UNROLL
  for (int k = 0; k < AT_ONCE; k++)
    if (bits[k] != NOTHING) most = max(most, bits[k]);
  atomicMax(&first_largest, most);
  __syncthreads();  // the first elements of all threads
  const int begin = max((static_cast<int>(first_largest >> 23) + 2) * OCTAVE - WINDOW, 0);
  for (; i < count; i += AT_ONCE * step) {
    UNROLL
    for (int k = 0; k < AT_ONCE; k++) {
      if (bits[k] == NOTHING) continue;
      most = max(most, bits[k]);
      const int bin = bits[k] >> DROPPED_BITS;
      if (bin == 0)
        zeros++;
      else if (bin >= begin && bin < begin + WINDOW && bits[k] < INFINITE)
        atomicAdd(window + bin - begin, 1u);
      else if (bits[k] < INFINITE)
        atomicAdd(out + bin, 1ull);
    }
    load(bits, inp, i + AT_ONCE * step, step, count, C, CP);
  }
  atomicMax(&block_largest, most);
  atomicAdd(&block_zeros, zeros);
  __syncthreads();  // all elements are counted
  for (int b = tid; b < WINDOW; b += THREADS)
    if (window[b]) atomicAdd(out + begin + b, static_cast<unsigned long long>(window[b]));
  if (tid == 0) {
    atomicMax(largest, block_largest);
    atomicAdd(out, static_cast<unsigned long long>(block_zeros));
  }
}
