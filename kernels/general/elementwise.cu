// elementwise_f32: out[i] = [activation](function(a[i], b[i], c[i], d[i], e[i])); of the gradient of a ReLU or a Clip a is
//                  what that gave, and the sum of the others goes where a is above zero, or between the limits
// Layouts:  floats of any rank and strides; walk: extents and limits of out, strides of out, a, b, c, d, e. A stride of
//           0 repeats an operand. What lies beyond the limit of the innermost dimension is padding.
// Mapping:  one thread per `width` (1 or 4) neighbours of out's innermost dimension, in the order of memory. With 4, an
//           operand whose bit is set in `vectors` is read 16 bytes at a time, any other float by float.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     about 1 FLOP per operand and value; a division per dimension; reads what is not repeated once.
// Edges:    any extents; padding becomes zero and is never read. NaN stays NaN, through clip and activation, too. With a
//           width of 4 the innermost extent, other strides of out and of `vectors`, and addresses are multiples of 4.
// Why:      in a VGG these are folded into the convolution before them; this one serves where there is none to fold
//           into, where its result is asked for, and every other graph. One kernel compiles once for all of them.
#include "walk.cuh"

// as FUNCTIONS of compiler/op_kernels/general/elementwise.py
enum : int { ADD, MUL, SUB, DIV, LEAKY_RELU, CLIP, BATCH_NORM, SCALE_SHIFT, QUANTISE, RELU_GRADIENT, CLIP_GRADIENT };

constexpr int MAX_OPERANDS = 5;
enum : int { EXTENTS, LIMITS, OUT_STRIDES, OPERAND_STRIDES };  // rows of the walk

struct Function {
  int number, operands;
  float first, second, third;  // alpha; the limits of a clip; epsilon; a step and the limits in steps
  Activation activation;
};

__device__ __forceinline__ float value_of(const Function& f, const float (&x)[MAX_OPERANDS]) {
  float v = x[0];
  switch (f.number) {
    case SUB:
      return v - x[1];
    case DIV:
      return v / x[1];
    case LEAKY_RELU:
      return v < 0.f ? f.first * v : v;
    case CLIP:
      return min_nan(max_nan(v, f.operands > 1 ? x[1] : f.first), f.operands > 1 ? x[2] : f.second);
    case BATCH_NORM:
      return fmaf((v - x[3]) / sqrtf(x[4] + f.first), x[1], x[2]);
    case SCALE_SHIFT:
      return fmaf(v, x[1], x[2]);
    case QUANTISE:
      return min_nan(max_nan(rintf(v / f.first), f.second), f.third) * f.first;
    case RELU_GRADIENT:
      return v <= 0.f ? 0.f : x[1] + x[2] + x[3] + x[4];  // those that are not there are 0
    case CLIP_GRADIENT:
      return v <= f.first || v >= f.second ? 0.f : x[1] + x[2] + x[3] + x[4];
  }
  UNROLL
  for (int k = 1; k < MAX_OPERANDS; k++)
    if (k < f.operands) v = f.number == MUL ? v * x[k] : v + x[k];
  return v;
}

template <int WIDTH>
__device__ __forceinline__ void compute(float* out, const float* const (&operand)[MAX_OPERANDS], const Walk& walk,
                                        const Function& f, int vectors, int position) {
  int index[RANK];
  indices_of(position, walk.row[EXTENTS], index);
  const int real = walk.row[LIMITS][RANK - 1] - index[RANK - 1];  // values before the padding
  float x[WIDTH][MAX_OPERANDS] = {};
  UNROLL
  for (int k = 0; k < MAX_OPERANDS; k++) {
    if (k >= f.operands) break;
    const auto& strides = walk.row[OPERAND_STRIDES + k];
    const float* source = operand[k] + offset_of(index, strides);
    if (WIDTH == 4 && real >= 4 && vectors >> k & 1) {
      float v[4];
      unpack4(v, load4(source));
      UNROLL
      for (int i = 0; i < WIDTH; i++) x[i][k] = v[i];
    } else {
      UNROLL
      for (int i = 0; i < WIDTH; i++)
        if (i < real) x[i][k] = source[i * strides[RANK - 1]];
    }
  }
  float y[4] = {};
  UNROLL
  for (int i = 0; i < WIDTH; i++)
    if (i < real) {
      y[i] = f.activation(value_of(f, x[i]));
    }
  float* const target = out + offset_of(index, walk.row[OUT_STRIDES]);
  if (WIDTH == 4)
    store4(target, pack4(y));
  else
    *target = y[0];
}

extern "C" __global__ void __launch_bounds__(256) elementwise_f32(
    float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
    const float* __restrict__ d, const float* __restrict__ e, const Walk walk, int function, int operands, float first,
    float second, float third, ACTIVATION_PARAMETER(activation), int width, int vectors, int threads GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= static_cast<unsigned>(threads)) return;
  const float* const operand[MAX_OPERANDS] = {a, b, c, d, e};
  const Function f = {function, operands, first, second, third, ACTIVATION(activation)};
  if (width == 4)
    compute<4>(out, operand, walk, f, vectors, 4 * static_cast<int>(thread));
  else
    compute<1>(out, operand, walk, f, vectors, static_cast<int>(thread));
}
