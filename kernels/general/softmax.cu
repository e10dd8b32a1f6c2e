// softmax_f32: out[n,i] = exp(inp[n,i] - max_j inp[n,j]) / sum_j exp(inp[n,j] - max)
//           axis_softmax_f32: the same over some dimensions together of a tensor of any rank and strides; with
//           `log_wanted` its logarithm, out[i] = (inp[i] - max) - log(sum).
// Layouts:  softmax: inp (N,inp_pitch) float, out (N,out_pitch) float, F <= both pitches. axis_softmax: rows of the walk
//           are extents (stored), limits (real), strides of out and of inp: 0..3 for the dimensions that count the rows
//           of the softmax, 4..7 for those that a row consists of, `stored` elements.
// Mapping:  one block of 256 threads per row; thread t owns elements t, t+256, ... in the order in which out lies.
// Tiles:    none.
// Shared:   32 bytes; 256 threads.
// Cost:     about 50 FLOP per element (two exponentials); reads the row three times (from cache after the first),
//           writes it once. axis_softmax: and up to 8 divisions of integers each time that it looks for an element.
// Sums:     each thread in order, groups of 288 terms first, lanes by a butterfly, warps in order: the same bits on every
//           device.
// Edges:    any length; what is stored and not real is written as zero. A NaN in a row makes the whole row NaN.
// Why:      some exporters end the network in a softmax; it is never worth more than one simple kernel. The logarithm,
//           one for a row, is taken in double, so that libraries that differ in its last bits give the same float.
#include "block_reduce.cuh"
#include "walk.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = 288;  // terms of a thread that are added up in one go

// Where an element of a row lies, and whether it is one: what is not real is not read, and becomes zero.
struct Place {
  long long out, inp;
  bool real;
};

struct DenseRow {
  int F;
  __device__ __forceinline__ Place operator[](int i) const { return {i, i, i < F}; }
};

__device__ __forceinline__ Place place_of(int position, const int (*rows)[RANK]) {
  int index[RANK];
  indices_of(position, rows[0], index);
  bool real = true;
  UNROLL
  for (int d = 0; d < RANK; d++) real = real && index[d] < rows[1][d];
  return {offset_of(index, rows[2]), offset_of(index, rows[3]), real};
}

struct WalkedRow {
  const Walk& walk;
  Place start;
  __device__ __forceinline__ Place operator[](int i) const {
    const Place place = place_of(i, walk.row + 4);
    return {start.out + place.out, start.inp + place.inp, start.real && place.real};
  }
};

template <class Row>
__device__ __forceinline__ void softmax(float* out, const float* inp, const Row& row, int stored, bool log_wanted) {
  __shared__ float scratch[WARPS];
  float highest = -INFINITY;
  for (int i = threadIdx.x; i < stored; i += THREADS) {
    const Place place = row[i];
    if (place.real) highest = max_nan(highest, inp[place.inp]);
  }
  highest = block_reduce<true, WARPS>(highest, scratch);
  float sum = 0.f;
  for (int first = threadIdx.x; first < stored; first += THREADS * GROUP) {
    float part = 0.f;
    for (int i = first; i < stored && i - first < THREADS * GROUP; i += THREADS) {
      const Place place = row[i];
      if (place.real) part += exp_f32(inp[place.inp] - highest);
    }
    sum += part;
  }
  sum = block_reduce<false, WARPS>(sum, scratch);
  const float log_sum = log_wanted ? static_cast<float>(log(static_cast<double>(sum))) : 0.f;
  for (int i = threadIdx.x; i < stored; i += THREADS) {
    const Place place = row[i];
    float y = 0.f;
    if (place.real) {
      const float x = inp[place.inp] - highest;
      y = log_wanted ? x - log_sum : exp_f32(x) / sum;
    }
    out[place.out] = y;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_f32(float* __restrict__ out, const float* __restrict__ inp, int F, int inp_pitch,
            int out_pitch GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const long long n = blockIdx.x;
  softmax(out + n * out_pitch, inp + n * inp_pitch, DenseRow{F}, out_pitch, false);
}

extern "C" __global__ void __launch_bounds__(THREADS)
axis_softmax_f32(float* __restrict__ out, const float* __restrict__ inp, Walk walk, int stored,
                 int log_wanted GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  softmax(out, inp, WalkedRow{walk, place_of(blockIdx.x, walk.row)}, stored, log_wanted != 0);
}
