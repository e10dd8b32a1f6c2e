// conv_direct_f32: out[n,oh,ow,oc] = [pool2x2]([activation](bias[oc] + sum over kh, kw, c of
//                  inp[n, oh*SH-PT+kh, ow*SW-PL+kw, c] * weight[kh,kw,c,oc]))
// Layouts:  those of conv_igemm: inp (N,H,W,C), weight (KH*KW*C and more, OC), bias (OC), out (N,OH,OW,OC), all float;
//           C and OC padded to multiples of 4.
// Mapping:  rows are output pixels, in conv_igemm's order. Thread: THREAD_ROWS rows x WIDE columns, PX rows at a time, whose
//           sums stay in registers; what is left of the columns in fours. blockIdx.y counts WIDE columns.
// Tiles:    THREAD_ROWS (32), POOL (0).
// Shared:   none; any number of threads, on a CPU best one.
// Cost:     2*N*OH*OW*OC*KH*KW*C FLOP. A thread reads each pixel of its windows KH*KW times and WIDE columns of weights
//           once for every PX rows, from the caches.
// Sums:     those of conv_igemm, to the bit (but that -0 may be 0 there): a group of `group` products is one FFMA chain from
//           zero, group sums are added in order.
// Edges:    any KH, KW, stride, padding; what lies outside of the map is read from four zeros.
// Why:      a CPU has caches in the place of shared memory: copies into tiles and barriers take four times as long there as
//           the products. Lanes of a vector are output channels, so no sum crosses them.
#include "common.cuh"
#include "implicit_gemm.cuh"
#include "timeline.cuh"

#ifndef THREAD_ROWS
#define THREAD_ROWS 32
#endif
#ifndef POOL
#define POOL 0
#endif

constexpr int WIDE = 16;                          // columns
constexpr int PX = VECTOR_FLOATS >= 16 ? 8 : 4;  // rows at a time: as many sums as there are registers for
static_assert(THREAD_ROWS % PX == 0, "a thread's rows come in whole parts");

// Where the windows of PX rows begin.
struct Windows {
  const float* image[PX];
  int top[PX], left[PX];
  bool exists[PX];

  __device__ __forceinline__ Windows(const ConvShape& s, const float* inp, int row0) {
    UNROLL
    for (int i = 0; i < PX; i++) {
      int n, oh, ow;
      row_to_pixel<POOL>(s.OH, s.OW, row0 + i, n, oh, ow);
      exists[i] = row0 + i < s.rows;
      image[i] = inp + (long long)n * s.H * s.W * s.C;
      top[i] = oh * s.SH - s.PT;
      left[i] = ow * s.SW - s.PL;
    }
  }

  // The channels of a tap, or zeros, which are read at the same place for every channel.
  __device__ __forceinline__ const float* tap(const ConvShape& s, int i, int kh, int kw, const float* zeros,
                                              int& step) const {
    const int h = top[i] + kh, w = left[i] + kw;
    step = exists[i] && (unsigned)h < (unsigned)s.H && (unsigned)w < (unsigned)s.W;
    return step ? image[i] + ((long long)h * s.W + w) * s.C : zeros;
  }
};

// sum = PX rows x COLUMNS columns of the products `first` to `last`. weight: its first column.
template <int COLUMNS>
__device__ __forceinline__ void sum_group(float (&sum)[PX][COLUMNS], const ConvShape& s, const Windows& windows,
                                          const float* weight, int first, int last) {
  const __align__(16) float zeros[4] = {};
  UNROLL
  for (int i = 0; i < PX; i++) {
    LANES
    for (int j = 0; j < COLUMNS; j++) sum[i][j] = 0.f;
  }
  weight += (long long)first * s.OC;
  int tap = first / s.C, c = first % s.C;
  for (int k = first; k < last; tap++, c = 0) {
    const int end = min(s.C, c + last - k);
    const float* source[PX];
    int step[PX];
    UNROLL
    for (int i = 0; i < PX; i++) source[i] = windows.tap(s, i, tap / s.KW, tap % s.KW, zeros, step[i]);
    k += end - c;
    for (; c < end; c += 4) {
      float a[PX][4];
      UNROLL
      for (int i = 0; i < PX; i++) unpack4(a[i], load4(source[i] + c * step[i]));
      UNROLL
      for (int kk = 0; kk < 4; kk++) {
        float b[COLUMNS];
        UNROLL
        for (int j = 0; j < COLUMNS; j++) b[j] = weight[j];
        weight += s.OC;
        UNROLL
        for (int i = 0; i < PX; i++) {
          LANES
          for (int j = 0; j < COLUMNS; j++) sum[i][j] = fmaf(a[i][kk], b[j], sum[i][j]);
        }
      }
    }
  }
}

template <int COLUMNS>
__device__ __forceinline__ void store_rows(float* out, float (&sum)[PX][COLUMNS], const ConvShape& s, const float* bias,
                                           int row0, int oc0, int out_channels, Activation activation) {
  constexpr int WINDOW = POOL ? 4 : 1;
  UNROLL
  for (int i = 0; i < PX; i++) {
    LANES
    for (int j = 0; j < COLUMNS; j++)
      sum[i][j] = finish_conv(sum[i][j], bias[oc0 + j], oc0 + j < out_channels, activation);
  }
  UNROLL
  for (int i = 0; i < PX; i += WINDOW) {
    if (row0 + i >= s.rows) return;
    float* const target = out + (long long)((row0 + i) / WINDOW) * s.OC + oc0;
    LANES
    for (int j = 0; j < COLUMNS; j++) target[j] = POOL ? window_max(&sum[i][j], COLUMNS) : sum[i][j];
  }
}

template <int COLUMNS>
__device__ __forceinline__ void compute(float* out, const float* inp, const float* weight, const float* bias,
                                        const ConvShape& s, int row0, int oc0, int out_channels, int group,
                                        Activation activation) {
  const int products = s.KH * s.KW * s.C;
  const Windows windows(s, inp, row0);
  float total[PX][COLUMNS], sum[PX][COLUMNS];
  sum_group(total, s, windows, weight + oc0, 0, min(group, products));
  for (int first = group; first < products; first += group) {
    sum_group(sum, s, windows, weight + oc0, first, min(first + group, products));
    UNROLL
    for (int i = 0; i < PX; i++) {
      LANES
      for (int j = 0; j < COLUMNS; j++) total[i][j] += sum[i][j];
    }
  }
  store_rows(out, total, s, bias, row0, oc0, out_channels, activation);
}

extern "C" __global__ void WIDE_VECTORS
conv_direct_f32(float* __restrict__ out, const float* __restrict__ inp, const float* __restrict__ weight,
                const float* __restrict__ bias, int rows, int H, int W, int C, int OH, int OW, int OC, int KH, int KW,
                int SH, int SW, int PT, int PL, int out_channels, int group,
                ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER GUARD_PARAMETERS) {
  const ConvShape s{rows, H, W, C, OH, OW, OC, KH, KW, SH, SW, PT, PL};
  const int block_row = blockIdx.x * blockDim.x * THREAD_ROWS, oc0 = blockIdx.y * WIDE;
  RETURN_UNLESS_NEEDED_BY(block_row / (OH * OW), (block_row + (int)blockDim.x * THREAD_ROWS - 1) / (OH * OW));
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  TIMED(if (threadIdx.x == 0) STAMP(OPERANDS);)
  const int first = block_row + threadIdx.x * THREAD_ROWS, last = min(first + THREAD_ROWS, rows);
  ROLLED
  for (int row0 = first; row0 < last; row0 += PX) {
    if (oc0 + WIDE <= OC) {
      compute<WIDE>(out, inp, weight, bias, s, row0, oc0, out_channels, group, ACTIVATION(activation));
    } else {
      for (int oc = oc0; oc < OC; oc += 4)
        compute<4>(out, inp, weight, bias, s, row0, oc, out_channels, group, ACTIVATION(activation));
    }
  }
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
