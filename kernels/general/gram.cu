// gram_f32: partials[n,s,i,j] = sum over the pixels p of slice s of inp[n,p,i] * inp[n,p,j]
//           gram_sum_f32: out[n,i,j] = scale * the sum of partials[n,s,i,j] over the slices
// Layouts:  inp (N,P,pitch) float, C <= pitch, a multiple of 4; partials (N,slices,C,C), out (N,C,C) float.
// Mapping:  gram: a block has 64x64 channels of a slice of 1024 pixels, those on and above the diagonal alone, and writes
//           what mirrors it, too; a thread 4x4. gram_sum: a thread an element.
// Tiles:    none.
// Shared:   8192 bytes; 256 threads.
// Cost:     P*C*(C+64) FLOP; reads the map (C+64)/128 times, half of it from the caches. Shared reads of a thread: 32
//           bytes per 16 FFMA.
// Sums:     groups of 256 pixels: a group is one FFMA chain from zero; groups in order, then slices in order. The bits
//           depend on P and C alone; out is symmetric bit by bit.
// Edges:    any P, C, N: what lies beyond is loaded as zero.
// Why:      as a product of matrices it would have C*C outputs, few blocks, and P products each: so pixels are cut up.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int TILE = 64;    // channels
constexpr int PIECE = 16;   // pixels in shared memory
constexpr int GROUP = 256;  // pixels of an FFMA chain
constexpr int SLICE = 1024;
constexpr int SIDE = 4;  // rows and columns of a thread

// 4 channels of a pixel to shared memory; zeros beyond.
__device__ __forceinline__ void load_piece(float (&tile)[PIECE][TILE], const float* inp, int first, int pixels,
                                           int channel, int pitch) {
  const int row = threadIdx.x / (TILE / 4), column = threadIdx.x % (TILE / 4) * 4;
  const int pixel = first + row, c = channel + column;
  const bool valid = pixel < pixels && c < pitch;
  store4(&tile[row][column],
         valid ? load4(inp + static_cast<long long>(pixel) * pitch + c) : make_float4(0.f, 0.f, 0.f, 0.f));
}

extern "C" __global__ void __launch_bounds__(THREADS)
gram_f32(float* __restrict__ partials, const float* __restrict__ inp, int P, int C, int pitch GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ __align__(16) float left[PIECE][TILE], right[PIECE][TILE];
  const int tiles = (C + TILE - 1) / TILE;
  int row_tile = 0, column_tile = blockIdx.x;  // of the triangle, row by row
  while (column_tile >= tiles - row_tile) column_tile -= tiles - row_tile++;
  column_tile += row_tile;
  const long long n = blockIdx.z;
  inp += n * P * pitch;
  const int begin = static_cast<int>(blockIdx.y) * SLICE, end = min(begin + SLICE, P);
  const int row = threadIdx.x / (TILE / SIDE) * SIDE, column = threadIdx.x % (TILE / SIDE) * SIDE;
  float sum[SIDE][SIDE] = {}, total[SIDE][SIDE] = {};
  for (int first = begin; first < end; first += PIECE) {
    __syncthreads();  // the pieces before have been read
    load_piece(left, inp, first, end, row_tile * TILE, pitch);
    load_piece(right, inp, first, end, column_tile * TILE, pitch);
    __syncthreads();  // all threads have written
    UNROLL
    for (int k = 0; k < PIECE; k++) {
      float a[SIDE], b[SIDE];
      unpack4(a, load4(&left[k][row]));
      unpack4(b, load4(&right[k][column]));
      UNROLL
      for (int i = 0; i < SIDE; i++) {
        LANES
        for (int j = 0; j < SIDE; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
      }
    }
    if ((first + PIECE - begin) % GROUP != 0 && first + PIECE < end) continue;
    UNROLL
    for (int i = 0; i < SIDE; i++) {
      UNROLL
      for (int j = 0; j < SIDE; j++) {
        total[i][j] += sum[i][j];
        sum[i][j] = 0.f;
      }
    }
  }
  partials += (n * gridDim.y + blockIdx.y) * C * C;
  UNROLL
  for (int i = 0; i < SIDE; i++) {
    UNROLL
    for (int j = 0; j < SIDE; j++) {
      const int y = row_tile * TILE + row + i, x = column_tile * TILE + column + j;
      if (y >= C || x >= C) continue;
      partials[static_cast<long long>(y) * C + x] = total[i][j];
      if (row_tile != column_tile) partials[static_cast<long long>(x) * C + y] = total[i][j];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gram_sum_f32(float* __restrict__ out, const float* __restrict__ partials, int elements, int slices,
             float scale GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const int element = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const long long n = blockIdx.y;
  if (element >= elements) return;
  const float* part = partials + n * slices * elements + element;
  float sum = 0.f;
  for (int s = 0; s < slices; s++) sum += part[static_cast<long long>(s) * elements];
  out[n * elements + element] = scale * sum;
}
