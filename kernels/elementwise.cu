// relu_f32: out[i] = inp[i] < 0 ? 0 : inp[i].   scale_shift_f32: out[p,c] = inp[p,c] * scale[c] + shift[c]
// Layouts:  inp and out: `count` floats, count a multiple of 4; scale_shift: (count/C, C), C a multiple of 4; scale and
//           shift (C) float.
// Mapping:  one thread per 4 values.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     1 or 2 FLOP per value; reads and writes each value once.
// Edges:    any multiple of 4; NaN stays NaN.
// Why:      ReLU and batch normalisation are folded into the convolution before them; these serve where there is none
//           to fold into, or where its result is asked for.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
relu_f32(float* __restrict__ out, const float* __restrict__ inp, int count4) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count4) return;
  float x[4];
  unpack4(x, load4(inp + 4LL * index));
  UNROLL
  for (int v = 0; v < 4; v++) x[v] = relu(x[v]);
  store4(out + 4LL * index, pack4(x));
}

extern "C" __global__ void __launch_bounds__(256)
scale_shift_f32(float* __restrict__ out, const float* __restrict__ inp, const float* __restrict__ scale,
                const float* __restrict__ shift, int count4, int C) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count4) return;
  const int c = index % (C / 4) * 4;
  float x[4], a[4], b[4];
  unpack4(x, load4(inp + 4LL * index));
  unpack4(a, load4(scale + c));
  unpack4(b, load4(shift + c));
  UNROLL
  for (int v = 0; v < 4; v++) x[v] = fmaf(x[v], a[v], b[v]);
  store4(out + 4LL * index, pack4(x));
}
