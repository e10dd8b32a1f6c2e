// take: out[n,i] = inp[n,i], images of somebody else's array as a run's input; zero in the images that are missing and in
//       the control words behind them
//       take_dense: the same of images whose values lie in order, one behind the other, float32 or of two bytes
// Layouts:  inp of ELEMENT, any strides; walk: extents and strides of an image, outermost first, its rows 1 and 0 before
//           them; image_stride from one image to the next, in elements. out: `images` dense images, uint8 where inp is,
//           else float; then `zeros` bytes.
// Mapping:  grid (blocks, images); thread t of an image takes its values t, t + gridDim.x*256, ...; dense: 4 neighbours
//           at a time, so that a warp reads whole lines of two-byte numbers, too.
// Tiles:    ELEMENT (0): 0 float32, 1 float16, 2 bfloat16, 4 uint8.
// Shared:   none; 256 threads.
// Cost:     no FLOP; a division for each dimension that is left; reads and writes each value once.
// Edges:    any extents and strides, negative and zero ones too; at least one image. Dense: values and image_stride are
//           multiples of 4, inp begins at one of 16 bytes.
// Why:      whatever form a caller's array has, one launch brings it in and makes the words ready.
#include "stored.cuh"
#include "walk.cuh"

#ifndef ELEMENT
#define ELEMENT 0
#endif

constexpr int THREADS = 256;

enum : int { EXTENTS, STRIDES };  // rows of the walk

__device__ __forceinline__ long long place_of(int position, const Walk& walk) {
  long long offset = 0;
  UNROLL
  for (int d = RANK - 1; d >= 0; d--) {
    const int extent = walk.row[EXTENTS][d];
    if (extent == 1) continue;  // the same for all threads: few dimensions cost few divisions
    offset += static_cast<long long>(position % extent) * walk.row[STRIDES][d];
    position /= extent;
  }
  return offset;
}

// Zero bytes, by all threads of the grid.
__device__ __forceinline__ void clear(unsigned char* behind, int zeros) {
  const long long threads = static_cast<long long>(gridDim.x) * gridDim.y * THREADS;
  const long long first = (static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * THREADS + threadIdx.x;
  for (long long i = first; i < zeros; i += threads) behind[i] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) take(void* __restrict__ out, const void* __restrict__ inp,
                                                           unsigned char* __restrict__ behind, const Walk walk,
                                                           int image_stride, int values, int zeros GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const int n = blockIdx.y, first = blockIdx.x * THREADS + threadIdx.x;
  const long long start = static_cast<long long>(n) * image_stride;
  for (long long i = first; i < values; i += gridDim.x * THREADS) {
    const long long at = start + place_of(static_cast<int>(i), walk), to = static_cast<long long>(n) * values + i;
    if (ELEMENT == U8)
      static_cast<unsigned char*>(out)[to] = static_cast<const unsigned char*>(inp)[at];
    else
      static_cast<float*>(out)[to] = StoredElement<ELEMENT>::load(inp, at, 0);
  }
  clear(behind, zeros);
}

extern "C" __global__ void __launch_bounds__(THREADS)
take_dense(float* __restrict__ out, const void* __restrict__ inp, unsigned char* __restrict__ behind, int image_stride,
           int values, int zeros GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  constexpr int READ = ELEMENT == U8 ? F32 : ELEMENT;  // bytes are taken by `take` alone
  const long long n = blockIdx.y;
  for (long long i = 4LL * (blockIdx.x * THREADS + threadIdx.x); i < values; i += 4LL * gridDim.x * THREADS) {
    float v[4];
    load4_stored<READ>(v, inp, n * image_stride + i);
    store4(out + n * values + i, pack4(v));
  }
  clear(behind, zeros);
}
