// bias_relu_f32: out[c,p] = [relu](out[c,p] + bias[c]), in place
// Layouts:  out (C,HW), bias (C), float; a matrix of one row is HW = 1.
// Mapping:  a thread for each element, neighbours read neighbours.
// Cost:     a load and a store of 4 bytes for 2 FLOP: bound by memory.
// Teaches:  three lines take the map off the bus: between two layers it went to the host and back for this.
//           Yet it reads and writes the whole map once more than a convolution that did it before storing.
#include "common.cuh"

extern "C" __global__ void bias_relu_f32(float* __restrict__ out, const float* __restrict__ bias, int elements, int HW,
                                         int apply_relu) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= elements) return;
  const float v = out[index] + bias[index / HW];
  out[index] = apply_relu ? relu(v) : v;
}
