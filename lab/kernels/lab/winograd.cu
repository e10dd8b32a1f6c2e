// winograd_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh-padding+kh, ow-padding+kw] * weight[oc,c,kh,kw], as
//               F(2x2,3x3): for each 2x2 of y, d its 4x4 of x, g the 3x3 filter:  A' [sum over c (G g G') o (B' d B)] A
// Layouts:  float. x (N,C,H,W), weight (OC,C,3,3), y (N,OC,OH,OW); filters = G g G', once for all images, as
//           (groups of OUTPUTS channels, C, 16, OUTPUTS), zero beyond OC.
// Mapping:  winograd_weights_f32: one thread per filter. winograd_f32: one thread per 2x2 pixels of OUTPUTS output channels;
//           grid (pixels, groups, N).
// Tiles:    OUTPUTS (4), a multiple of 4.
// Shared:   none; any block. Registers: 16*OUTPUTS sums.
// Cost:     per output and channel 4 multiply-adds instead of 9, and 8/OUTPUTS additions for B' d B; after all channels 6
//           additions. Loads for 16*OUTPUTS multiply-adds: 16 of x and 4*OUTPUTS of 16 bytes of filters, the same ones for
//           all threads of a block. The filters take 16/9 of the weights' room.
// Edges:    any padding; taps beside the image are zero; an odd last row or column is computed and not stored. 3x3, stride 1.
// Sums:     channels in order. Values of x are added up before they are multiplied: with few channels the error is some 2
//           times that of a direct convolution, with many it is no larger, because the sums are 9 times shorter.
// Teaches:  fewer multiplications for more additions, loads and registers (Lavin and Gray, 2015). The FLOP of a direct
//           convolution divided by the time may pass the card's peak; the multiplications that are done never do.
#include "common.cuh"

#ifndef OUTPUTS
#define OUTPUTS 4
#endif

static_assert(OUTPUTS % 4 == 0, "filters are read by 16 bytes");

// One column, or row, of the transforms: multiplied by G, B' and A'.
__device__ __forceinline__ void transform_weight(float* out, int step, float g0, float g1, float g2) {
  out[0] = g0;
  out[step] = 0.5f * (g0 + g1 + g2);
  out[2 * step] = 0.5f * (g0 - g1 + g2);
  out[3 * step] = g2;
}

__device__ __forceinline__ void transform_input(float* d, int step) {
  const float d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
  d[0] = d0 - d2;
  d[step] = d1 + d2;
  d[2 * step] = d2 - d1;
  d[3 * step] = d1 - d3;
}

__device__ __forceinline__ void transform_sum(float* out, int step, float m0, float m1, float m2, float m3) {
  out[0] = m0 + m1 + m2;
  out[step] = m1 - m2 - m3;
}

extern "C" __global__ void winograd_weights_f32(float* __restrict__ filters, const float* __restrict__ weight, int C,
                                                int OC) {
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const int c = index % C;
  const long long oc = index / C, group = oc / OUTPUTS;
  if (group * OUTPUTS >= OC) return;
  float g[9], columns[12], u[16];
  UNROLL
  for (int i = 0; i < 9; i++) g[i] = oc < OC ? weight[index * 9 + i] : 0.f;
  UNROLL
  for (int i = 0; i < 3; i++) transform_weight(columns + i, 3, g[i], g[3 + i], g[6 + i]);
  UNROLL
  for (int i = 0; i < 4; i++) transform_weight(u + 4 * i, 1, columns[3 * i], columns[3 * i + 1], columns[3 * i + 2]);
  float* out = filters + (group * C + c) * 16 * OUTPUTS + oc % OUTPUTS;
  UNROLL
  for (int i = 0; i < 16; i++) out[i * OUTPUTS] = u[i];
}

// B' d B for the 4x4 values of a plane that begin at (top, left).
__device__ __forceinline__ void read_input(float (&d)[16], const float* plane, int H, int W, int top, int left) {
  UNROLL
  for (int i = 0; i < 16; i++) {
    const int h = top + i / 4, w = left + i % 4;
    const bool inside = h >= 0 && h < H && w >= 0 && w < W;
    d[i] = inside ? plane[(long long)h * W + w] : 0.f;
  }
  UNROLL
  for (int i = 0; i < 4; i++) transform_input(d + i, 4);
  UNROLL
  for (int i = 0; i < 4; i++) transform_input(d + 4 * i, 1);
}

// A' m A, as far as it lies in y.
__device__ __forceinline__ void store(float* y, const float (&m)[16][OUTPUTS], int o, int oh, int ow, int OH, int OW) {
  float columns[8], out[4];
  UNROLL
  for (int i = 0; i < 4; i++) transform_sum(columns + i, 4, m[i][o], m[4 + i][o], m[8 + i][o], m[12 + i][o]);
  UNROLL
  for (int i = 0; i < 2; i++) {
    const float* row = columns + 4 * i;
    transform_sum(out + 2 * i, 1, row[0], row[1], row[2], row[3]);
  }
  UNROLL
  for (int i = 0; i < 4; i++)
    if (oh + i / 2 < OH && ow + i % 2 < OW) y[(long long)(oh + i / 2) * OW + ow + i % 2] = out[i];
}

extern "C" __global__ void winograd_f32(float* __restrict__ y, const float* __restrict__ x,
                                        const float* __restrict__ filters, int C, int H, int W, int OC, int OH, int OW,
                                        int padding) {
  const int across = (OW + 1) / 2;
  const long long tile = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const int oh = tile / across * 2, ow = tile % across * 2;
  const int oc = blockIdx.y * OUTPUTS, n = blockIdx.z;
  if (oh >= OH) return;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter = filters + (long long)oc * C * 16;

  float m[16][OUTPUTS] = {};
  for (int c = 0; c < C; c++) {
    float d[16];
    read_input(d, plane, H, W, oh - padding, ow - padding);
    UNROLL
    for (int i = 0; i < 16; i++) {
      float u[OUTPUTS];
      UNROLL
      for (int o = 0; o < OUTPUTS; o += 4) unpack4(u + o, load4(filter + i * OUTPUTS + o));
      LANES
      for (int o = 0; o < OUTPUTS; o++) m[i][o] = fmaf(d[i], u[o], m[i][o]);
    }
    plane += (long long)H * W;
    filter += 16 * OUTPUTS;
  }
  UNROLL
  for (int o = 0; o < OUTPUTS; o++)
    if (oc + o < OC) store(y + ((long long)n * OC + oc + o) * OH * OW, m, o, oh, ow, OH, OW);
}
