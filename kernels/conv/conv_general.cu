// conv_general_f32: out[n,oc,oh,ow] = [activation](bias[oc] + sum over c, kh, kw of
//                   inp[n, g*CG+c, oh*SH-PT+kh*DH, ow*SW-PL+kw*DW] * weight[oc,c,kh,kw]), g the group of oc
// Layouts:  float. inp and weight: a stride for each dimension. out: (N,OC,OH,OW), or with channels_last (N,OH,OW,OCP).
//           bias (OC). Rows of `shape`, each for (n, c, h, w): 0 extents of out, OCP for c if padded, 1 extents of inp
//           with CG, the channels of a group, for c, 2 strides of inp, 3 of weight, 4 (-, -, KH, KW), 5 (-, -, SH, SW),
//           6 (-, -, DH, DW), 7 (-, -, PT, PL).
// Mapping:  one thread per output, in the order in which they lie in memory: neighbours are pixels or channels.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     2*CG*KH*KW FLOP per output, for each product 2 floats that come from the caches.
// Sums:     groups of whole filter rows, 288 products unless a row is longer. A group is one FFMA chain from zero;
//           group sums are added in order. The bits do not depend on layouts or the batch.
// Edges:    any window, stride, dilation, padding and number of groups; taps beside the map are left out. Channels from
//           OC to OCP are written as zero.
// Why:      grouped and dilated convolutions, and weights that are known at run time alone; all others go to the
//           kernels with tiles.
#include "walk.cuh"

constexpr int GROUP = 288;  // products

enum Row { OUT, INP, INP_STRIDE, WEIGHT_STRIDE, KERNEL, STEP, DILATION, PAD };  // of `shape`
enum Column { N, C, H, W };

extern "C" __global__ void __launch_bounds__(256) conv_general_f32(float* __restrict__ out,
                                                                   const float* __restrict__ inp,
                                                                   const float* __restrict__ weight,
                                                                   const float* __restrict__ bias, const Walk shape,
                                                                   int count, int OC, int group_outputs,
                                                                   int channels_last, int has_bias,
                                                                   ACTIVATION_PARAMETER(activation) GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const auto& s = shape.row;
  const unsigned position = blockIdx.x * blockDim.x + threadIdx.x;
  if (position >= static_cast<unsigned>(count)) return;
  unsigned rest = position;
  const auto take = [&](int extent) {  // the index of the innermost dimension left
    const int index = rest % extent;
    rest /= extent;
    return index;
  };
  int oc = channels_last ? take(s[OUT][C]) : 0;
  const int ow = take(s[OUT][W]), oh = take(s[OUT][H]);
  if (!channels_last) oc = take(s[OUT][C]);
  if (oc >= OC) {
    out[position] = 0.f;
    return;
  }
  const int first = oc / group_outputs * s[INP][C];
  const float* channel = inp + ((long long)rest * s[INP_STRIDE][N] + (long long)first * s[INP_STRIDE][C]);
  const float* filter = weight + (long long)oc * s[WEIGHT_STRIDE][N];
  const int top = oh * s[STEP][H] - s[PAD][H], left = ow * s[STEP][W] - s[PAD][W];
  const int rows_per_group = max(GROUP / s[KERNEL][W], 1);

  float sum = 0.f, total = 0.f;
  int rows = 0;
  for (int c = 0; c < s[INP][C]; c++) {
    for (int kh = 0; kh < s[KERNEL][H]; kh++) {
      const int h = top + kh * s[DILATION][H];
      if (h < 0 || h >= s[INP][H]) continue;
      const float* x = channel + h * s[INP_STRIDE][H];
      const float* taps = filter + kh * s[WEIGHT_STRIDE][H];
      for (int kw = 0; kw < s[KERNEL][W]; kw++) {
        const int w = left + kw * s[DILATION][W];
        if (w >= 0 && w < s[INP][W]) sum = fmaf(x[w * s[INP_STRIDE][W]], taps[kw * s[WEIGHT_STRIDE][W]], sum);
      }
      if (++rows == rows_per_group) {
        total += sum;
        sum = 0.f;
        rows = 0;
      }
    }
    channel += s[INP_STRIDE][C];
    filter += s[WEIGHT_STRIDE][C];
  }
  const float v = total + sum + (has_bias ? bias[oc] : 0.f);
  out[position] = ACTIVATION(activation)(v);
}
