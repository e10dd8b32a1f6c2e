// observe_f32: out[c] = max(out[c], max over pixels of |inp[p,c]|)
//              row_scale_f32: scale[r] = 2^(14 - e), e the exponent of the row's largest |w| / inp_scale, which it
//              brings below 2^15; dequant[r] = correction over what a product is scaled by, plain[r] = 1 over it where
//              weights are not scaled; level[r] = 2^10 * Euclidean length of the row over inp_scale.
//              choose_scale_f32: scale[c] = 2^(10 - e), e the exponent of max(observed[c], level[c]); dead channels
//              take the largest e of all, and with `uniform` all channels do.
// Layouts:  inp (pixels,CP) float; weights w at row * row_stride + c * c_stride + tap * tap_stride; vectors of floats
//           per channel (CP) or row (rows).
// Mapping:  observe: thread owns a channel and every 4th pixel of a chunk. row_scale: a block a row. choose_scale: one
//           block.
// Tiles:    none.
// Shared:   at most 2 KB; 256 threads.
// Cost:     runs while an engine is built; each value is read once.
// Edges:    any sizes. Zero rows get the scale 1. Exponents are kept within +-60, so that products of scales are
//           finite.
// Why:      float32 on tensor cores is made of pairs of float16, whose range is small: powers of two per channel bring
//           values to 2^10 (32-fold room above, 2^-25 of rounding below) and weights to 2^15. A channel that was silent
//           on the samples may still speak: `level` is what its weights make of inputs at their calibrated size.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int TARGET_EXPONENT = 10;  // of stored values; float16 ends at 2^16
constexpr int WEIGHT_EXPONENT = 14;
constexpr int MAX_EXPONENT = 60;

__device__ __forceinline__ int exponent_of(float v) {
  const int e = (__float_as_int(v) >> 23 & 255) - 127;
  return min(max(e, -MAX_EXPONENT), MAX_EXPONENT);
}

// The largest of all threads' values, in every thread. `shared` holds THREADS floats.
__device__ __forceinline__ float block_max(float v, float* shared) {
  shared[threadIdx.x] = v;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}

extern "C" __global__ void __launch_bounds__(THREADS) observe_f32(float* __restrict__ out,
                                                                  const float* __restrict__ inp, int pixels, int CP) {
  const int c = blockIdx.x * 64 + threadIdx.x % 64;
  if (c >= CP) return;
  float largest = 0.f;
  for (int p = blockIdx.y * 4 + threadIdx.x / 64; p < pixels; p += gridDim.y * 4)
    largest = fmaxf(largest, fabsf(inp[(long long)p * CP + c]));
  atomicMax(reinterpret_cast<int*>(out + c), __float_as_int(largest));  // floats >= 0 order like integers
}

extern "C" __global__ void __launch_bounds__(THREADS) row_scale_f32(
    float* __restrict__ scale, float* __restrict__ dequant, float* __restrict__ plain, float* __restrict__ level,
    const float* __restrict__ w, const float* __restrict__ inp_scale, int C, int TAPS, int row_stride, int c_stride,
    int tap_stride, int per_channel, float correction) {
  __shared__ float shared[THREADS];
  const int row = blockIdx.x;
  const float unit = 1.f / inp_scale[0];
  float largest = 0.f, squares = 0.f;
  for (int i = threadIdx.x; i < C * TAPS; i += THREADS) {
    const int c = i % C, tap = i / C;
    const float inverse = per_channel ? 1.f / inp_scale[c] : unit;
    const float v =
        fabsf(w[(long long)row * row_stride + (long long)c * c_stride + (long long)tap * tap_stride]) * inverse;
    largest = fmaxf(largest, v);
    squares = fmaf(v, v, squares);
  }
  largest = block_max(largest, shared);
  __syncthreads();  // shared is used again
  shared[threadIdx.x] = squares;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const float chosen = largest > 0.f ? exact_exp2(WEIGHT_EXPONENT - exponent_of(largest)) : 1.f;
    scale[row] = per_channel ? chosen : chosen * unit;  // a fully connected layer scales its weights as they are
    dequant[row] = correction / chosen;
    plain[row] = unit;
    level[row] = sqrtf(shared[0]) * exact_exp2(TARGET_EXPONENT);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_scale_f32(float* __restrict__ scale,
                                                                       const float* __restrict__ observed,
                                                                       const float* __restrict__ level, int CP,
                                                                       int uniform) {
  __shared__ float shared[THREADS];
  float largest = 0.f;
  for (int c = threadIdx.x; c < CP; c += THREADS) largest = fmaxf(largest, fmaxf(observed[c], level[c]));
  largest = block_max(largest, shared);
  for (int c = threadIdx.x; c < CP; c += THREADS) {
    const float own = fmaxf(observed[c], level[c]);
    const float size = uniform || !(own > 0.f) ? largest : own;
    scale[c] = size > 0.f ? exact_exp2(TARGET_EXPONENT - exponent_of(size)) : 1.f;
  }
}
