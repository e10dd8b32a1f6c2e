// give_straight: out[n,r,c] = inp[n,r,c], an output as it is stored into another element, row by row.
//          give_turned: out[n,c,r] = inp[n,r,c], rows and columns swapped: NHWC to (N,C,H,W), or back
//          give_narrow: the same where there are at most 8 columns, those of an image say
// Layouts:  inp (images,rows,inp_pitch) of INPUT, out of OUTPUT: (N,rows,out_pitch), turned (N,columns,out_pitch). Pairs
//           lie as two planes of `images` images, all of hi before all of lo. inp_scale: a float for each column of
//           pairs, with FACTOR for each image of any element; else not read.
// Mapping:  straight: grid (blocks, N), thread t of an image takes its values t, t + gridDim.x*256, ... Turned: grid
//           (row tiles, column tiles, N), a block of 32 x 8 threads turns a tile of 32 x 32: a warp reads 32 neighbours
//           of inp and writes 32 neighbours of out. Narrow: grid (blocks, N), a thread has a row: a warp reads 32 whole
//           rows and writes 32 neighbours of each column.
// Tiles:    INPUT (0), OUTPUT (0): 0 float32, 1 float16, 2 bfloat16, 3 pair of float16, 4 uint8, 5 int8; FACTOR (0).
// Shared:   turned: a tile and a column against bank conflicts, 4,224 bytes; 256 threads.
// Cost:     no FLOP; straight: a division; reads and writes each value once. A tile of 3 columns would leave 29 of 32
//           lanes without work.
// Edges:    any rows, columns and pitches; what lies between columns and out_pitch (turned: rows and out_pitch) is not
//           written. A quantised value is number * inp_step.
// Why:      an output leaves the device's element and layout in one launch, and only where somebody wants another one.
#include "stored.cuh"

#ifndef INPUT
#define INPUT 0
#endif
#ifndef OUTPUT
#define OUTPUT 0
#endif
#ifndef FACTOR
#define FACTOR 0
#endif

constexpr int TILE = 32;
constexpr int THREADS = 256;
constexpr int TILE_ROWS = THREADS / TILE;  // that the threads of a block hold at once
constexpr int NARROW = 8;

// An output as it is stored.
struct Stored {
  const void* values;
  const float* scale;
  long long plane;
  float step;
  long long image;

  __device__ __forceinline__ float value(long long at, int column) const {
    float v = StoredElement<INPUT>::load(values, at, plane);
    if (FACTOR || INPUT == F16_PAIR) v /= scale[FACTOR ? image : column];
    if (INPUT == U8 || INPUT == S8) v *= step;
    return v;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
give_straight(void* __restrict__ out, const void* __restrict__ inp, const float* __restrict__ inp_scale, int images,
              int rows, int columns, int inp_pitch, int out_pitch, float inp_step GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED_BY(blockIdx.y, blockIdx.y);
  const long long inp_image = static_cast<long long>(rows) * inp_pitch;
  const long long n = blockIdx.y;
  const Stored stored = {inp, inp_scale, images * inp_image, inp_step, n};
  for (long long i = blockIdx.x * THREADS + threadIdx.x; i < static_cast<long long>(rows) * columns;
       i += gridDim.x * THREADS) {
    const int r = static_cast<int>(i) / columns, c = static_cast<int>(i) % columns;
    const float v = stored.value(n * inp_image + static_cast<long long>(r) * inp_pitch + c, c);
    StoredElement<OUTPUT>::store(out, (n * rows + r) * out_pitch + c, 0, v);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
give_turned(void* __restrict__ out, const void* __restrict__ inp, const float* __restrict__ inp_scale, int images,
            int rows, int columns, int inp_pitch, int out_pitch, float inp_step GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED_BY(blockIdx.z, blockIdx.z);
  __shared__ float tile[TILE][TILE + 1];
  const long long inp_image = static_cast<long long>(rows) * inp_pitch;
  const long long n = blockIdx.z;
  const Stored stored = {inp, inp_scale, images * inp_image, inp_step, n};
  const int row = blockIdx.x * TILE, column = blockIdx.y * TILE;
  const int across = threadIdx.x % TILE, down = threadIdx.x / TILE;
  UNROLL
  for (int i = 0; i < TILE; i += TILE_ROWS) {
    const int r = row + down + i, c = column + across;
    if (r < rows && c < columns)
      tile[down + i][across] = stored.value(n * inp_image + static_cast<long long>(r) * inp_pitch + c, c);
  }
  __syncthreads();  // the tile is there
  UNROLL
  for (int i = 0; i < TILE; i += TILE_ROWS) {
    const int r = row + across, c = column + down + i;
    if (r < rows && c < columns)
      StoredElement<OUTPUT>::store(out, (n * columns + c) * out_pitch + r, 0, tile[across][down + i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
give_narrow(void* __restrict__ out, const void* __restrict__ inp, const float* __restrict__ inp_scale, int images,
            int rows, int columns, int inp_pitch, int out_pitch, float inp_step GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED_BY(blockIdx.y, blockIdx.y);
  const long long inp_image = static_cast<long long>(rows) * inp_pitch;
  const long long n = blockIdx.y, r = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  const Stored stored = {inp, inp_scale, images * inp_image, inp_step, n};
  if (r >= rows) return;
  float v[NARROW];
  UNROLL
  for (int c = 0; c < NARROW; c++)
    if (c < columns) v[c] = stored.value(n * inp_image + r * inp_pitch + c, c);
  UNROLL
  for (int c = 0; c < NARROW; c++)
    if (c < columns) StoredElement<OUTPUT>::store(out, (n * columns + c) * out_pitch + r, 0, v[c]);
}
