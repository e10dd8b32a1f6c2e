// convert: out[n,p,c] = inp[n,p,c] in another element, zero in the padding
// Layouts:  inp (N,HW,inp_pitch), out (N,HW,out_pitch), of the elements INPUT and OUTPUT; pairs lie as two such planes,
//           all of hi before all of lo. inp_scale, out_scale: a float per stored channel for pairs; with FACTOR
//           inp_scale is one per image, of any element; else not read.
// Mapping:  grid (chunks, N); one thread per 4 channels of a pixel of out.
// Tiles:    INPUT (0), OUTPUT (3): 0 float32, 1 float16, 2 bfloat16, 3 pair of float16, 4 uint8, 5 int8; FACTOR (0).
// Shared:   none; 256 threads.
// Cost:     no FLOP; reads and writes each element once.
// Edges:    any C and HW. A quantised value is number * inp_step, a number rint(value * out_inverse), saturated, 0 for
//           NaN. Pairs and float16 raise maxima[n] to the largest magnitude stored of image n (bits of a float; NaN is
//           the largest).
// Why:      where an operator has no kernel on tensor cores, values meet the float32 kernels here; in a VGG, its input alone.
#include "stored.cuh"

#ifndef INPUT
#define INPUT 0
#endif
#ifndef OUTPUT
#define OUTPUT 3
#endif
#ifndef FACTOR
#define FACTOR 0
#endif

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) convert(void* __restrict__ out, const void* __restrict__ inp,
                                                              const float* __restrict__ out_scale,
                                                              const float* __restrict__ inp_scale,
                                                              unsigned* __restrict__ maxima, int HW, int C,
                                                              int inp_pitch, int out_pitch, float inp_step,
                                                              float out_inverse) {
  const int n = blockIdx.y;
  const long long inp_plane = (long long)gridDim.y * HW * inp_pitch, out_plane = (long long)gridDim.y * HW * out_pitch;
  const unsigned groups = out_pitch / 4, count = HW * groups;
  float largest = 0.f;
  for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
    const int p = static_cast<int>(i / groups), first = static_cast<int>(i % groups * 4);
    UNROLL
    for (int c = first; c < first + 4; c++) {
      const long long at = ((long long)n * HW + p) * inp_pitch + c;
      float v = c < C ? StoredElement<INPUT>::load(inp, at, inp_plane) : 0.f;
      if (c < C && (FACTOR || INPUT == F16_PAIR)) v /= inp_scale[FACTOR ? n : c];
      if (INPUT == U8 || INPUT == S8) v *= inp_step;
      if (c < C && OUTPUT == F16_PAIR) v *= out_scale[c];
      if (OUTPUT == U8 || OUTPUT == S8) v *= out_inverse;
      const float magnitude = StoredElement<OUTPUT>::store(out, ((long long)n * HW + p) * out_pitch + c, out_plane, v);
      largest = max_nan(largest, magnitude);
    }
  }
  if (OUTPUT == F16 || OUTPUT == F16_PAIR)
    record_f16_magnitude(reinterpret_cast<int*>(maxima + n), magnitude_bits(largest));
}
