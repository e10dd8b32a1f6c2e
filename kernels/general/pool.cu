// pool_f32: out[n,oh,ow,c] = max or mean of inp[n, oh*SH-PT+kh*DH, ow*SW-PL+kw*DW, c] over the window, clipped to the map
//           global_pool_f32: out[n,c] = max or mean of inp[n,p,c] over all HW pixels p
// Layouts:  inp (N,H,W,C) float, out (N,OH,OW,C) float; C a multiple of 4, of which `channels` are real.
// Mapping:  pool: one thread per 4 channels of an output pixel, channels fastest: a warp reads 512 consecutive bytes per
//           window element. global_pool: one block of 256 threads per 4 channels of an image, thread t takes pixels t,
//           t+256, ...
// Tiles:    AVERAGE (0): 0 takes the maximum, 1 the mean.
// Shared:   global_pool: 128 bytes; 256 threads.
// Cost:     KH*KW-1 comparisons or additions per output; reads N*H*W*C*4 bytes where windows do not overlap, writes
//           N*OH*OW*C*4. global_pool: HW-1, reads and writes each value once.
// Sums:     window elements row by row, groups of 288 first; global_pool: each thread so, lanes by a butterfly, warps in
//           order.
// Edges:    any window, stride, dilation, padding; the last windows may reach beyond the padding. The maximum starts at
//           minus infinity over the clipped window and keeps NaN; the mean divides by the elements inside the map, or
//           inside the padded map with count_include_pad. Rows and columns that no window reaches are dropped. A window
//           of nothing but padding gives 0 as its mean and the lowest float as its maximum, as onnxruntime says.
// Why:      VGG's pools after a convolution are fused into it; this one serves every other pool.
#include "common.cuh"
#include "window.cuh"

#ifndef AVERAGE
#define AVERAGE 0
#endif

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = 288;  // values that are added up in one go
constexpr float LOWEST = -3.402823466e38f;

__device__ __forceinline__ float of_nothing() { return AVERAGE ? 0.f : -INFINITY; }

__device__ __forceinline__ float combined(float a, float b) { return AVERAGE ? a + b : max_nan(a, b); }

// What has been made of the values of 4 channels so far: whole groups, and the group under way.
struct Pooled {
  float whole[4], group[4];
  int held = 0;

  __device__ __forceinline__ Pooled() {
    UNROLL
    for (int v = 0; v < 4; v++) whole[v] = group[v] = of_nothing();
  }

  __device__ __forceinline__ void take(const float* source) {
    float x[4];
    unpack4(x, load4(source));
    UNROLL
    for (int v = 0; v < 4; v++) group[v] = combined(group[v], x[v]);
    if (AVERAGE && ++held == GROUP) close_group();
  }

  __device__ __forceinline__ void close_group() {
    UNROLL
    for (int v = 0; v < 4; v++) {
      whole[v] = combined(whole[v], group[v]);
      group[v] = of_nothing();
    }
    held = 0;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
pool_f32(float* __restrict__ out, const float* __restrict__ inp, int outputs, int channels, int H, int W, int C, int OH,
         int OW, int KH, int KW, int SH, int SW, int DH, int DW, int PT, int PL, int PB, int PR,
         int count_include_pad GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const unsigned quads = C / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;  // fits: the planner sees to it
  const int pixel = index / quads, c = index % quads * 4;        // pixel counts (n, oh, ow)
  if (pixel >= outputs) return;
  const int ow = pixel % OW, oh = pixel / OW % OH, n = pixel / OW / OH;
  const int top = oh * SH - PT, left = ow * SW - PL;
  const Span rows = span_inside(top, DH, KH, 0, H), columns = span_inside(left, DW, KW, 0, W);
  int counted = rows.count() * columns.count();
  const bool empty = counted == 0;
  if (count_include_pad)
    counted = span_inside(top, DH, KH, -PT, H + PB).count() * span_inside(left, DW, KW, -PL, W + PR).count();
  Pooled pooled;
  for (int kh = rows.first; kh < rows.end; kh++)
    for (int kw = columns.first; kw < columns.end; kw++)
      pooled.take(inp + (((long long)n * H + top + kh * DH) * W + left + kw * DW) * C + c);
  pooled.close_group();
  float* result = pooled.whole;
  UNROLL
  for (int v = 0; v < 4; v++) {
    if (AVERAGE)
      result[v] = result[v] / max(counted, 1);
    else if (empty)
      result[v] = c + v < channels ? LOWEST : 0.f;
  }
  store4(out + (long long)pixel * C + c, pack4(result));
}

extern "C" __global__ void __launch_bounds__(THREADS)
global_pool_f32(float* __restrict__ out, const float* __restrict__ inp, int HW, int C GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ float scratch[WARPS][4];
  const int quads = C / 4, n = blockIdx.x / quads, c = blockIdx.x % quads * 4;
  const float* map = inp + (long long)n * HW * C + c;
  Pooled pooled;
  for (int p = threadIdx.x; p < HW; p += THREADS) pooled.take(map + (long long)p * C);
  pooled.close_group();
  UNROLL
  for (int v = 0; v < 4; v++) {
    float value = pooled.whole[v];
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2)
      value = combined(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32][v] = value;
  }
  __syncthreads();  // all warps have written
  if (threadIdx.x >= 4) return;
  float value = scratch[0][threadIdx.x];
  for (int warp = 1; warp < WARPS; warp++) value = combined(value, scratch[warp][threadIdx.x]);
  out[(long long)n * C + c + threadIdx.x] = AVERAGE ? value / HW : value;
}
