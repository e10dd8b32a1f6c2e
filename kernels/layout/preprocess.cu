// preprocess_u8: out[n,h,w,c] = inp[n,h,w,c] * scale[c] + shift[c], channels C..CP-1 zero
// Layouts:  inp (N,HW,C) unsigned char, out (N,HW,CP) float, CP = C rounded up to 4; scale and shift (CP) float.
// Mapping:  grid (pixel blocks, N); thread t of a block owns pixels t, t + gridDim.x*256, ... with all their channels.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     2 FLOP per value; reads N*HW*C bytes, writes 4*N*HW*CP.
// Edges:    any C and HW. scale = 1/(255*std), shift = -mean/std come from the host. Bytes are always finite.
// Why:      an image travels as bytes, a quarter of the traffic, and is normalised where it is used.
#include "common.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
preprocess_u8(float* __restrict__ out, const unsigned char* __restrict__ inp,
              const float* __restrict__ scale, const float* __restrict__ shift, int HW, int C,
              int CP INPUT_PARAMETERS GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const int n = blockIdx.y, tid = threadIdx.x;
  const unsigned char* x = inp + (long long)n * HW * C;
  float* y = out + (long long)n * HW * CP;
  for (int p = blockIdx.x * THREADS + tid; p < HW; p += gridDim.x * THREADS)
    for (int c = 0; c < CP; c += 4) {
      float v[4];
      UNROLL
      for (int i = 0; i < 4; i++)
        v[i] = c + i < C ? INPUT_LIMITS(fmaf((float)x[(long long)p * C + c + i], scale[c + i], shift[c + i])) : 0.f;
      store4(y + (long long)p * CP + c, pack4(v));
    }
}
