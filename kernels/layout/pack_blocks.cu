// pack_blocks: out[block,tap,plane,oc,i] = w[oc, c, tap] * row_scale[oc] / inp_scale[c], c = block*BLOCK + i, in
//           ELEMENT
//              pack_rows: out[o,p,c] = w[o,c,p] in ELEMENT, zero in the padding
// Layouts:  blocks: w at oc*oc_stride + c*c_stride + tap*tap_stride, float (or int8 for 8-bit elements); out (blocks,
//           TAPS, planes, OCP, BLOCK); row_scale and inp_scale only for pairs. rows: w (rows,C,HW), out (rows,HW,CP).
// Mapping:  one thread per element of a plane of out.
// Tiles:    ELEMENT (1): as in stored.cuh; BLOCK (64) channels: what a row of 128 bytes holds.
// Shared:   none; 256 threads.
// Cost:     no FLOP that counts; runs once per engine.
// Edges:    any OC and C; zero beyond them. In 8 bits the rows of each group of 16 outputs are permuted: row r < 8
//           holds output 2r, row r + 8 output 2r + 1, so that a thread of wgmma holds two neighbours and stores them at
//           once.
// Why:      the copy engine loads a box of rows of 128 bytes as the tensor cores read them, for any tile.
#include "stored.cuh"

#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef BLOCK
#define BLOCK 64
#endif

constexpr int THREADS = 256;
constexpr bool IS_PAIR = ELEMENT == F16_PAIR;
constexpr bool IS_BYTE = ELEMENT == U8 || ELEMENT == S8;
constexpr int RAW = IS_BYTE ? S8 : F32;

__device__ __forceinline__ int output_of_row(int row) {
  return IS_BYTE ? row / 16 * 16 + row % 8 * 2 + row % 16 / 8 : row;
}

extern "C" __global__ void __launch_bounds__(THREADS) pack_blocks(void* __restrict__ out, const void* __restrict__ w,
                                                                  const float* __restrict__ row_scale,
                                                                  const float* __restrict__ inp_scale, int OC, int OCP,
                                                                  int C, int blocks, int TAPS, int oc_stride,
                                                                  int c_stride, int tap_stride) {
  const long long index = (long long)blockIdx.x * THREADS + threadIdx.x;
  const int plane = OCP * BLOCK;
  if (index >= (long long)blocks * TAPS * plane) return;
  const int row = index % plane / BLOCK, oc = output_of_row(row);
  const long long slab = index / plane;  // block * TAPS + tap
  const int c = slab / TAPS * BLOCK + index % BLOCK, tap = slab % TAPS;
  float v = 0.f;
  if (oc < OC && c < C) {
    v = StoredElement<RAW>::load(w, (long long)oc * oc_stride + (long long)c * c_stride + (long long)tap * tap_stride,
                                 0);
    if (IS_PAIR) v *= row_scale[oc] / inp_scale[c];
  }
  StoredElement<IS_BYTE ? S8 : ELEMENT>::store(out, index + (IS_PAIR ? slab * plane : 0), plane, v);
}

extern "C" __global__ void __launch_bounds__(THREADS) pack_rows(void* __restrict__ out, const void* __restrict__ w,
                                                                int rows, int C, int CP, int HW) {
  const long long index = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (index >= (long long)rows * HW * CP) return;
  const int c = index % CP;
  const long long pixel = index / CP;  // row * HW + hw
  const float v = c < C ? StoredElement<RAW>::load(w, (pixel / HW * C + c) * HW + pixel % HW, 0) : 0.f;
  StoredElement<IS_BYTE ? S8 : ELEMENT>::store(out, index, 0, v);
}
