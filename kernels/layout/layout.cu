// nchw_to_nhwc_f32: out[n,h,w,c] = inp[n,c,h,w], channels C..CP-1 zero; also reports NaN and Inf. nhwc_to_nchw_f32: the
//                 way back.
// Layouts:  NCHW side (N,C,HW) float, on the way back with a pitch of out_pitch >= C*HW; NHWC side (N,HW,CP) float, CP
//           a multiple of 4; status (N) int.
// Mapping:  grid (pixel blocks, N). To NHWC: thread t of a block owns pixels t, t + gridDim.x*256, ... with all their
//           channels: reads are coalesced along pixels, writes are whole 16-byte vectors. To NCHW: thread owns elements
//           of the NCHW side.
// Tiles:    none.
// Shared:   32 bytes; 256 threads.
// Cost:     no FLOP; reads and writes each element once: 4*N*HW*(C+CP) bytes.
// Edges:    any C and HW (a matrix is HW = 1). bit 0 of status[n] is set if the image holds a value that is not finite;
//           the host clears the words before a run. Elements C*HW..out_pitch-1 are written as zero.
// Why:      the graph's edges stay as the model says; inside a network there is no conversion.
#include "common.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
nchw_to_nhwc_f32(float* __restrict__ out, const float* __restrict__ inp, int* __restrict__ status, int HW, int C,
                 int CP INPUT_PARAMETERS GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ int warp_bad[THREADS / 32];
  const int n = blockIdx.y, tid = threadIdx.x;
  const float* x = inp + (long long)n * C * HW;
  float* y = out + (long long)n * CP * HW;
  bool bad = false;
  for (int p = blockIdx.x * THREADS + tid; p < HW; p += gridDim.x * THREADS)
    for (int c = 0; c < CP; c += 4) {
      float v[4];
      UNROLL
      for (int i = 0; i < 4; i++) {
        v[i] = c + i < C ? x[(long long)(c + i) * HW + p] : 0.f;
        bad |= !(fabsf(v[i]) < INFINITY);  // true for NaN too
        v[i] = INPUT_LIMITS(v[i]);
      }
      store4(y + (long long)p * CP + c, pack4(v));
    }
  const int any_bad = __any_sync(0xffffffffu, bad);
  if (tid % 32 == 0) warp_bad[tid / 32] = any_bad;
  __syncthreads();  // all warps have written
  if (tid == 0) {
    int result = 0;
    for (int i = 0; i < THREADS / 32; i++) result |= warp_bad[i];
    if (result) atomicOr(status + n, 1);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
nhwc_to_nchw_f32(float* __restrict__ out, const float* __restrict__ inp, int HW, int C, int CP,
                 int out_pitch GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const int n = blockIdx.y;
  const int index = blockIdx.x * THREADS + threadIdx.x;  // c * HW + p
  if (index >= out_pitch) return;
  const int c = index / HW, p = index % HW;
  out[(long long)n * out_pitch + index] = c < C ? inp[((long long)n * HW + p) * CP + c] : 0.f;
}
