// Solution of split: y[o] = sum over k of w[k,o] * x[k], for few outputs and a long sum: a fully connected layer, batch 1
// Layouts:  float. x (length), w (length,outputs), partial (PARTS,outputs), y (outputs).
// Launch:   split_sum with blocks of 32 threads, one for each output, and PARTS (#define, 1 to 256) blocks in y; then
//           add_parts with a thread for each output.
#include "lab/counted.cuh"

#define PARTS 32

extern "C" __global__ void split_sum(Counted<float>* partial, const Counted<float>* w, const Counted<float>* x,
                                     int length, int outputs) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x;
  const int part = blockIdx.y;
  if (o >= outputs) return;
  float sum = 0.f;
  const int share = (length + PARTS - 1) / PARTS;  // rounded up: the last part may be shorter, or empty
  const int first = part * share, end = min(first + share, length);
  for (int k = first; k < end; k++) sum = fmaf(w[k * outputs + o], x[k], sum);
  partial[part * outputs + o] = sum;
}

extern "C" __global__ void add_parts(Counted<float>* y, const Counted<float>* partial, int outputs) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x;
  if (o >= outputs) return;
  float sum = 0.f;
  for (int part = 0; part < PARTS; part++) sum += partial[part * outputs + o];
  y[o] = sum;
}
