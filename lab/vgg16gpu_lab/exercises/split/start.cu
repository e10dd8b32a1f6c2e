// Exercise split: y[o] = sum over k of w[k,o] * x[k], for few outputs and a long sum: a fully connected layer, batch 1
// Layouts:  float. x (length), w (length,outputs), partial (PARTS,outputs), y (outputs).
// Launch:   split_sum with blocks of 32 threads, one for each output, and PARTS (#define, 1 to 256) blocks in y; then
//           add_parts with a thread for each output.
// To do:    32 outputs are one block: one multiprocessor works, all others wait. Let PARTS blocks, 16 or more, each add
//           up a part of the sum and store it in `partial`; add_parts, which needs no change, adds the parts.
#include "lab/counted.cuh"

#define PARTS 1

extern "C" __global__ void split_sum(Counted<float>* partial, const Counted<float>* w, const Counted<float>* x,
                                     int length, int outputs) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x;
  const int part = blockIdx.y;
  if (o >= outputs) return;
  float sum = 0.f;
  for (int k = 0; k < length; k++) sum = fmaf(w[k * outputs + o], x[k], sum);
  partial[part * outputs + o] = sum;
}

extern "C" __global__ void add_parts(Counted<float>* y, const Counted<float>* partial, int outputs) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x;
  if (o >= outputs) return;
  float sum = 0.f;
  for (int part = 0; part < PARTS; part++) sum += partial[part * outputs + o];
  y[o] = sum;
}
