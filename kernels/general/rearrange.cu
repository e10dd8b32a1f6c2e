// rearrange_f32: out[i] = inp[start + i * step], or `fill` where that is outside of inp. reshape_f32: out[i] = inp[j],
//                i and j having the same number in row-major order. gather_f32: out[i] = inp[i], with an index of
//                `indices` along one axis
// Layouts:  floats of any rank and strides. walk: extents, limits and strides of out; then for rearrange start, step,
//           last index and stride of inp in each dimension of out; for reshape what an index of out adds to the number
//           of an element, extents and strides of inp; for gather the strides of inp and of indices (int).
// Mapping:  one thread per value of out, in the order of memory.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     no FLOP; a division per dimension, two for reshape; reads and writes each value once.
// Edges:    any extents, starts and steps, also negative ones. What lies beyond the limit of out's innermost dimension
//           is padding and becomes zero. indices must lie inside of inp.
// Why:      one copy by strides serves transposition, slices, padding, concatenation and every change of layout.
#include "walk.cuh"

enum : int { EXTENTS, LIMITS, OUT_STRIDES };  // rows of every walk
enum : int { STARTS = 3, STEPS, LAST, STRIDES };
enum : int { NUMBERS = 3, INP_EXTENTS, INP_STRIDES };
enum : int { ROW_STRIDES = 3, INDEX_STRIDES };

// Indices of this thread's value of out, if there is one.
__device__ __forceinline__ bool value_here(const Walk& walk, int count, int (&index)[RANK]) {
  const unsigned position = blockIdx.x * blockDim.x + threadIdx.x;
  if (position >= static_cast<unsigned>(count)) return false;
  indices_of(static_cast<int>(position), walk.row[EXTENTS], index);
  return true;
}

__device__ __forceinline__ bool is_padding(const Walk& walk, const int (&index)[RANK]) {
  return index[RANK - 1] >= walk.row[LIMITS][RANK - 1];
}

extern "C" __global__ void __launch_bounds__(256) rearrange_f32(float* __restrict__ out, const float* __restrict__ inp,
                                                                const Walk walk, float fill,
                                                                int count GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  int index[RANK];
  if (!value_here(walk, count, index)) return;
  int source[RANK];
  bool inside = true;
  UNROLL
  for (int d = 0; d < RANK; d++) {
    source[d] = walk.row[STARTS][d] + index[d] * walk.row[STEPS][d];
    inside &= source[d] >= 0 && source[d] <= walk.row[LAST][d];
  }
  float v = 0.f;
  if (!is_padding(walk, index)) v = inside ? inp[offset_of(source, walk.row[STRIDES])] : fill;
  out[offset_of(index, walk.row[OUT_STRIDES])] = v;
}

extern "C" __global__ void __launch_bounds__(256) reshape_f32(float* __restrict__ out, const float* __restrict__ inp,
                                                              const Walk walk, int count GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  int index[RANK];
  if (!value_here(walk, count, index)) return;
  float v = 0.f;
  if (!is_padding(walk, index)) {
    int source[RANK];
    indices_of(static_cast<int>(offset_of(index, walk.row[NUMBERS])), walk.row[INP_EXTENTS], source);
    v = inp[offset_of(source, walk.row[INP_STRIDES])];
  }
  out[offset_of(index, walk.row[OUT_STRIDES])] = v;
}

extern "C" __global__ void __launch_bounds__(256) gather_f32(float* __restrict__ out, const float* __restrict__ inp,
                                                             const int* __restrict__ indices, const Walk walk,
                                                             int axis_stride, int count GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  int index[RANK];
  if (!value_here(walk, count, index)) return;
  float v = 0.f;
  if (!is_padding(walk, index)) {
    const int along = indices[offset_of(index, walk.row[INDEX_STRIDES])];
    v = inp[offset_of(index, walk.row[ROW_STRIDES]) + static_cast<long long>(along) * axis_stride];
  }
  out[offset_of(index, walk.row[OUT_STRIDES])] = v;
}
