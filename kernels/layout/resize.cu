// resize_crop: out[n,y,x,c] = clip(sum_j wy[y][j] * clip(sum_i wx[x][i] * inp[fy[y]+j, fx[x]+i, c])), or the columns of
//              the picture first; clip(s) = (s + 2^21) >> 22 within 0..255. resize_tables: which pixels each row and
//              column of out is made of (first, count) and their weights, times 2^22. The bits are Pillow's.
// Layouts:  pool: pictures (h,w,C) unsigned char, each at an offset of 64 bits; out (N,H,W,C) unsigned char; table:
//           HEADER ints, the first the number of pictures, then a Picture for each; scratch: of each picture the tables
//           of its columns and of its rows, each (first[size], count[size], weight[taps][size]) int.
// Mapping:  grid (tiles of out, pictures at most): blocks behind the last picture return. A warp is 32 columns of a
//           tile. First pass, from the picture into shared memory: across rows a thread has 4 rows of the picture at a
//           time, down columns 2 of its columns; neighbours read neighbouring pixels. Second pass, from there into
//           registers: a thread has a column's pixels in every 8th row. Tables: a thread for a row or column of out.
// Tiles:    CHANNELS (3): of all pictures, 1 or 3. 32 x 32 pixels of out, of what the crop leaves. A picture comes 64
//           of its rows (columns) at a time; sums of the second pass stay in registers, integers in any order.
// Shared:   2 or 6 KB, whatever the size of a picture; 256 threads.
// Cost:     128 pictures 500x375 to 224, bilinear, on an H200: 41 MB of 72 are read, 19 written, 15 us of memory; 47 M
//           instructions of warps in the two passes (a tap is 3 loads of bytes, from L1 or shared memory, and 3 IMAD a
//           pixel), 50 us at the full rate, 60 to 90 expected. Tables: 0.5 M operations in double, 3 us (20 times that
//           where double is slow, as on a T4).
// Edges:    any H and W, pictures of 1x1 and any aspect with sides to 65535, up and down; rows and columns that the
//           crop drops are neither read nor computed. Nearest is one tap of weight 2^22. A size that stays is the
//           identity.
// Why:      a decoded picture goes to the device once, as bytes, and nothing of it comes back; a batch is two launches.
//           Weights are Pillow's doubles, in its order of operations, and so are the 8 bits between the passes.
#include "common.cuh"

#ifndef CHANNELS
#define CHANNELS 3
#endif

enum : int { NEAREST, BILINEAR, BICUBIC };

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int TILE = 32;                 // rows and columns of out
constexpr int CHUNK = 64;                // rows or columns of the picture in shared memory
constexpr int TILE_ROWS = TILE / WARPS;  // of a thread
constexpr int PRECISION = 22;            // bits behind the point of a weight
constexpr int HALF = 1 << (PRECISION - 1);
constexpr int HEADER = 2;  // words of the table before the first picture

struct Picture {
  int offset[2], scratch[2];  // 64 bits each, low words first: bytes, and words of scratch
  int h, w;                   // as it lies in the pool
  int rows, columns;          // that the whole of it is resized to
  int top, left;              // of the crop
  int column_taps;            // room for the weights of a column
  int n;                      // the row of out
  int reverse;                // whether the order of channels changes
  int down_first;             // whether the first pass goes down the columns
};

// What a row or column of out is made of.
struct Taps {
  int first, count;   // pixels of the picture
  const int* weight;  // of the first; those of the others `size` words apart
};

__device__ __forceinline__ const Picture& picture(const int* table, int i) {
  return reinterpret_cast<const Picture*>(table + HEADER)[i];
}

__device__ __forceinline__ long long wide(const int (&words)[2]) {
  return static_cast<long long>(words[1]) << 32 | static_cast<unsigned>(words[0]);
}

// Words of scratch before the tables of the columns, and of the rows.
__device__ __forceinline__ long long columns_at(const Picture& p) { return wide(p.scratch); }
__device__ __forceinline__ long long rows_at(const Picture& p, int W) {
  return columns_at(p) + static_cast<long long>(2 + p.column_taps) * W;
}

__device__ __forceinline__ Taps taps_of(const int* tables, int size, int i) {
  return {tables[i], tables[size + i], tables + 2 * size + i};
}

// ---- Tables

__device__ __forceinline__ double filter(int interpolation, double x) {
  if (x < 0.0) x = -x;
  if (interpolation == BILINEAR) return x < 1.0 ? 1.0 - x : 0.0;
  if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * -0.5;
  return 0.0;
}

// Pillow adds step to step; only the same additions give the same pixels. What they lose is below half a step, so that
// the last one stays in the picture, to 60 million steps.
__device__ __forceinline__ void choose_nearest(int* tables, int size, int i, int place, int from, int to) {
  const double step = static_cast<double>(from) / to;
  double position = step * 0.5;
  for (int k = 0; k < place; k++) position += step;
  tables[i] = static_cast<int>(position);
  tables[size + i] = 1;
  tables[2 * size + i] = 1 << PRECISION;
}

__device__ __forceinline__ void choose_weights(int* tables, int size, int i, int place, int from, int to,
                                               int interpolation) {
  const double scale = static_cast<double>(from) / to;
  const double stretch = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / stretch;
  const double support = (interpolation == BILINEAR ? 1.0 : 2.0) * stretch;
  const double center = (place + 0.5) * scale;
  const int first = max(static_cast<int>(center - support + 0.5), 0);
  const int count = min(static_cast<int>(center + support + 0.5), from) - first;
  double sum = 0.0;
  for (int t = 0; t < count; t++) sum += filter(interpolation, (t + first - center + 0.5) * inverse);
  for (int t = 0; t < count; t++) {
    double v = filter(interpolation, (t + first - center + 0.5) * inverse);
    if (sum != 0.0) v /= sum;
    v *= 1 << PRECISION;
    tables[(2 + t) * size + i] = static_cast<int>(v < 0 ? v - 0.5 : v + 0.5);
  }
  tables[i] = first;
  tables[size + i] = count;
}

extern "C" __global__ void __launch_bounds__(THREADS)
resize_tables(int* __restrict__ scratch, const int* __restrict__ table, int H, int W, int interpolation) {
  const int index = blockIdx.x * THREADS + threadIdx.x;  // columns, then rows
  if (static_cast<int>(blockIdx.y) >= table[0] || index >= W + H) return;
  const Picture& p = picture(table, blockIdx.y);
  const bool is_row = index >= W;
  const int i = is_row ? index - W : index, size = is_row ? H : W;
  const int place = i + (is_row ? p.top : p.left), from = is_row ? p.h : p.w, to = is_row ? p.rows : p.columns;
  int* tables = scratch + (is_row ? rows_at(p, W) : columns_at(p));
  if (interpolation == NEAREST)
    choose_nearest(tables, size, i, place, from, to);
  else
    choose_weights(tables, size, i, place, from, to, interpolation);
}

// ---- Pixels

// sum[k] += what `count` pixels, `step` bytes apart, contribute from inp + apart[k] on.
template <int K>
__device__ __forceinline__ void add_taps(int (&sum)[K][CHANNELS], const unsigned char* inp, const int (&apart)[K],
                                         int step, const int* weight, int size, int count) {
  ROLLED  // a tap is K * CHANNELS loads that do not wait for each other
  for (int t = 0; t < count; t++, inp += step, weight += size) {
    const int w = *weight;
    int v[K][CHANNELS];
    UNROLL
    for (int k = 0; k < K; k++)
      UNROLL
      for (int c = 0; c < CHANNELS; c++) v[k][c] = inp[apart[k] + c];
    UNROLL
    for (int k = 0; k < K; k++)
      UNROLL
      for (int c = 0; c < CHANNELS; c++) sum[k][c] += w * v[k][c];
  }
}

template <int K>
__device__ __forceinline__ void clear(int (&sum)[K][CHANNELS]) {
  UNROLL
  for (int k = 0; k < K; k++)
    UNROLL
    for (int c = 0; c < CHANNELS; c++) sum[k][c] = HALF;
}

__device__ __forceinline__ void store(unsigned char* out, const int (&sum)[CHANNELS], bool reverse = false) {
  UNROLL
  for (int c = 0; c < CHANNELS; c++) {
    const int v = reverse ? sum[CHANNELS - 1 - c] : sum[c];
    out[c] = static_cast<unsigned char>(min(max(v >> PRECISION, 0), 255));
  }
}

// `length` rows of a picture from inp on, each summed to a column of the tile: chunk (CHUNK,TILE,C).
__device__ __forceinline__ void across_rows(unsigned char* chunk, const unsigned char* inp, int pitch,
                                            const Taps& column, int W, int length) {
  constexpr int K = 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  ROLLED
  for (int r = warp * K; r < length; r += WARPS * K) {
    int sum[K][CHANNELS], apart[K];
    clear(sum);
    UNROLL
    for (int k = 0; k < K; k++) apart[k] = min(k, length - 1 - r) * pitch;
    const unsigned char* row = inp + static_cast<long long>(r) * pitch + column.first * CHANNELS;
    add_taps(sum, row, apart, CHANNELS, column.weight, W, column.count);
    UNROLL
    for (int k = 0; k < K; k++)  // behind the last row that one once more
      store(chunk + ((r + k) * TILE + lane) * CHANNELS, sum[k]);
  }
}

// `length` columns of a picture, inp the top of the first, each summed to the rows of the tile: chunk (TILE,CHUNK,C).
__device__ __forceinline__ void down_columns(unsigned char* chunk, const unsigned char* inp, int pitch,
                                             const Taps* rows, int H, int length) {
  constexpr int K = CHUNK / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int apart[K];
  UNROLL
  for (int k = 0; k < K; k++) apart[k] = min(32 * k + lane, length - 1) * CHANNELS;
  ROLLED
  for (int r = warp; r < TILE; r += WARPS) {
    const Taps row = rows[r];
    int sum[K][CHANNELS];
    clear(sum);
    add_taps(sum, inp + static_cast<long long>(row.first) * pitch, apart, pitch, row.weight, H, row.count);
    UNROLL
    for (int k = 0; k < K; k++) store(chunk + (r * CHUNK + 32 * k + lane) * CHANNELS, sum[k]);
  }
}

// Those of the taps that lie in a chunk, counted from its start.
__device__ __forceinline__ Taps within(const Taps& taps, int size, int start, int length) {
  const int first = max(taps.first, start);
  const int count = min(taps.first + taps.count, start + length) - first;
  return {first - start, count, taps.weight + static_cast<long long>(first - taps.first) * size};
}

// The second pass of what lies in the chunk: rows of it summed to this thread's pixels.
__device__ __forceinline__ void sum_rows(int (&sum)[TILE_ROWS][CHANNELS], const unsigned char* chunk, const Taps* rows,
                                         int H, int start, int length) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, apart[1] = {0};
  UNROLL
  for (int k = 0; k < TILE_ROWS; k++) {
    const Taps taps = within(rows[warp + k * WARPS], H, start, length);
    int(&one)[1][CHANNELS] = reinterpret_cast<int(&)[1][CHANNELS]>(sum[k]);
    add_taps(one, chunk + (taps.first * TILE + lane) * CHANNELS, apart, TILE * CHANNELS, taps.weight, H, taps.count);
  }
}

// The same for columns of it.
__device__ __forceinline__ void sum_columns(int (&sum)[TILE_ROWS][CHANNELS], const unsigned char* chunk,
                                            const Taps& column, int W, int start, int length) {
  const Taps taps = within(column, W, start, length);
  int apart[TILE_ROWS];
  UNROLL
  for (int k = 0; k < TILE_ROWS; k++) apart[k] = (static_cast<int>(threadIdx.x) / 32 + k * WARPS) * CHUNK * CHANNELS;
  add_taps(sum, chunk + taps.first * CHANNELS, apart, CHANNELS, taps.weight, W, taps.count);
}

template <bool DOWN_FIRST>
__device__ __forceinline__ void resize_tile(int (&sum)[TILE_ROWS][CHANNELS], unsigned char* chunk,
                                            const unsigned char* inp, int pitch, const Taps& column, const Taps* rows,
                                            int begin, int end, int H, int W) {
  ROLLED
  for (int start = begin; start < end; start += CHUNK) {
    const int length = min(CHUNK, end - start);
    __syncthreads();  // the chunk before has been used
    if (DOWN_FIRST)
      down_columns(chunk, inp + start * CHANNELS, pitch, rows, H, length);
    else
      across_rows(chunk, inp + static_cast<long long>(start) * pitch, pitch, column, W, length);
    __syncthreads();  // this one is there
    if (DOWN_FIRST)
      sum_columns(sum, chunk, column, W, start, length);
    else
      sum_rows(sum, chunk, rows, H, start, length);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
resize_crop(unsigned char* __restrict__ out, const unsigned char* __restrict__ pool, const int* __restrict__ table,
            const int* __restrict__ scratch, int H, int W) {
  __shared__ unsigned char chunk[CHUNK * TILE * CHANNELS];
  __shared__ Taps rows[TILE];
  if (static_cast<int>(blockIdx.z) >= table[0]) return;
  const Picture& p = picture(table, blockIdx.z);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int x0 = blockIdx.x * TILE, y0 = blockIdx.y * TILE, pitch = p.w * CHANNELS;
  const int last_x = min(x0 + TILE, W) - 1, last_y = min(y0 + TILE, H) - 1;
  const int *column_tables = scratch + columns_at(p), *row_tables = scratch + rows_at(p, W);
  const Taps column = taps_of(column_tables, W, min(x0 + lane, last_x));
  if (warp == 0) rows[lane] = taps_of(row_tables, H, min(y0 + lane, last_y));
  const unsigned char* inp = pool + wide(p.offset);
  int sum[TILE_ROWS][CHANNELS];
  clear(sum);
  if (p.down_first)
    resize_tile<true>(sum, chunk, inp, pitch, column, rows, column_tables[x0],
                      column_tables[last_x] + column_tables[W + last_x], H, W);
  else
    resize_tile<false>(sum, chunk, inp, pitch, column, rows, row_tables[y0],
                       row_tables[last_y] + row_tables[H + last_y], H, W);
  const bool reverse = p.reverse;
  out += ((static_cast<long long>(p.n) * H + y0 + warp) * W + x0 + lane) * CHANNELS;
  UNROLL
  for (int k = 0; k < TILE_ROWS; k++, out += WARPS * W * CHANNELS)
    if (y0 + warp + k * WARPS <= last_y && x0 + lane <= last_x) store(out, sum[k], reverse);
}
