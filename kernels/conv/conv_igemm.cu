// conv_igemm_f32: out[n,oh,ow,oc] = [pool2x2]([activation](bias[oc] + sum over kh, kw, c of
//                 inp[n, oh*SH-PT+kh, ow*SW-PL+kw, c] * weight[kh,kw,c,oc]))
// Layouts:  inp (N,H,W,C), weight (KH*KW*C rounded up to 32, OC) with zeros in the excess, bias (OC), out (N,OH,OW,OC),
//           all float; C and OC padded to multiples of 4.
// Mapping:  implicit GEMM. Rows are output pixels, columns output channels, the reduction k runs over (kh, kw, c).
//           Block: TILE_PX rows x TILE_OC columns x some reduction groups (blockIdx.z). Thread: THREAD_PX rows x
//           THREAD_OC columns. With POOL four consecutive rows of a thread are one 2x2 pooling window.
// Tiles:    TILE_PX (128), TILE_OC (64), TILE_K (16), THREAD_PX (8), THREAD_OC (8), STAGES (3), MIN_BLOCKS on a
//           multiprocessor (3), POOL (0).
// Shared:   4*STAGES*(TILE_PX*(TILE_K+4) + TILE_K*TILE_OC) bytes static, 4*TILE_PX*TILE_OC dynamic (the running sums);
//           (TILE_PX/THREAD_PX)*(TILE_OC/THREAD_OC) threads.
// Cost:     2*N*OH*OW*OC*KH*KW*C FLOP. Global reads: (1/TILE_OC + 1/TILE_PX)*KH*KW*C floats per output. Shared reads of
//           a thread, 8x8: 16 of 16 bytes per 256 FFMA.
// Sums:     groups of `group_tiles` k-tiles. A group is one FFMA chain from zero; group sums are added in order. So the
//           bits depend on the group length alone, never on tiles, splits or the batch. With gridDim.z > 1 the groups
//           go to `partial` and conv_igemm_reduce_f32 adds them in the same order.
// Edges:    any KH, KW, stride, padding; rows and columns beyond the tensor are loaded as zero and not stored; columns
//           from out_channels on are stored as zero.
// Variants: with the running sums in registers (64 more per thread) a third fewer warps are resident.
// Why:      the portable fp32 workhorse: no column matrix in memory, one kernel for every layer, sm_75 and up and CPUs.
#include "common.cuh"
#include "implicit_gemm.cuh"
#include "timeline.cuh"

#ifndef TILE_PX
#define TILE_PX 128
#endif
#ifndef TILE_OC
#define TILE_OC 64
#endif
#ifndef TILE_K
#define TILE_K 16
#endif
#ifndef THREAD_PX
#define THREAD_PX 8
#endif
#ifndef THREAD_OC
#define THREAD_OC 8
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 3
#endif
#ifndef POOL
#define POOL 0
#endif

constexpr int THREADS_PX = TILE_PX / THREAD_PX;
constexpr int THREADS_OC = TILE_OC / THREAD_OC;
constexpr int THREADS = THREADS_PX * THREADS_OC;
constexpr int QUADS_K = TILE_K / 4;                       // 16-byte vectors along k in a row of the pixel tile
constexpr int QUADS_OC = TILE_OC / 4;                     // 16-byte vectors in a row of the weight tile
constexpr int ROWS_PER_LOAD = THREADS / QUADS_K;          // pixel rows that all threads together fetch at once
constexpr int LOADS_PX = TILE_PX / ROWS_PER_LOAD;         // 16-byte vectors of the pixel tile per thread
constexpr int LOADS_OC = TILE_K * QUADS_OC / THREADS;     // 16-byte vectors of the weight tile per thread
constexpr int WEIGHT_ROWS_PER_LOAD = THREADS / QUADS_OC;  // weight rows that all threads together fetch at once
constexpr int FAR_ABOVE = -32768;  // map row of what must read as zero; maps have at most 32767 rows
constexpr int PITCH = TILE_K + 4;  // floats; 4 more put the rows of a warp in different banks

static_assert(TILE_PX % THREAD_PX == 0 && TILE_OC % THREAD_OC == 0, "threads must cover the tile");
static_assert(TILE_K % 4 == 0, "the reduction is fetched in 16-byte vectors");
static_assert(THREAD_OC % 4 == 0, "columns are read and stored in 16-byte vectors");
static_assert(THREAD_PX % 4 == 0, "a thread holds whole 2x2 pooling windows");
static_assert(THREADS % QUADS_K == 0 && TILE_PX % ROWS_PER_LOAD == 0, "the pixel tile is fetched in whole rounds");
static_assert(TILE_K * QUADS_OC % THREADS == 0, "the weight tile is fetched in whole rounds");
static_assert(THREADS % QUADS_OC == 0, "a thread fetches weights of one column");
static_assert(STAGES >= 2, "one stage is filled while another is read");

typedef float PixelTile[TILE_PX][PITCH];
typedef float WeightTile[TILE_K][TILE_OC];
typedef float Accumulators[THREAD_PX][THREAD_OC];

// Tile row of accumulator row i of a thread: the threads of a warp read neighbouring rows, so that their banks differ.
__device__ __forceinline__ int tile_row(int thread_px, int i) { return thread_px + i * THREADS_PX; }

// GEMM row, counted from the block's first, of tile row r: rows 4q..4q+3 of a thread are consecutive GEMM rows.
__device__ __forceinline__ int gemm_row(int r) {
  const int i = r / THREADS_PX, thread_px = r % THREADS_PX;
  return (i / 4 * THREADS_PX + thread_px) * 4 + i % 4;
}

// What one thread fetches of each tile: 16 bytes at one reduction offset of LOADS_PX pixel rows, and LOADS_OC vectors
// of weights in one column. All that does not change from tile to tile is computed once: the main loop must be almost
// pure FFMA.
struct Fetcher {
  const char* first;           // tap (0, 0), channel 0 of the block's first pixel; may lie outside of the map
  int pixel_offset[LOADS_PX];  // bytes from there to that of a pixel; what lies outside is not read
  int origin[LOADS_PX];        // map row and column of tap (0, 0), 16 bits each
  int pixel_valid[LOADS_PX];   // whether the current tap lies in the map
  const float* weight_source;
  bool weight_valid;
  int kh, kw, c;  // of the next fetch, advanced by TILE_K each time instead of divided

  __device__ __forceinline__ Fetcher(const ConvShape& s, const float* inp, const float* weight, int row0, int oc0,
                                     int k0) {
    int n0, oh0, ow0;
    row_to_pixel<POOL>(s.OH, s.OW, row0, n0, oh0, ow0);
    const int ih0 = oh0 * s.SH - s.PT, iw0 = ow0 * s.SW - s.PL;
    first = reinterpret_cast<const char*>(inp + (((long long)n0 * s.H + ih0) * s.W + iw0) * s.C);
    UNROLL
    for (int l = 0; l < LOADS_PX; l++) {
      const int row = row0 + gemm_row(threadIdx.x / QUADS_K + l * ROWS_PER_LOAD);
      int n, oh, ow;
      row_to_pixel<POOL>(s.OH, s.OW, row, n, oh, ow);
      const int ih = oh * s.SH - s.PT, iw = ow * s.SW - s.PL;
      pixel_offset[l] = (((n - n0) * s.H + ih - ih0) * s.W + iw - iw0) * s.C * 4;
      origin[l] = (row < s.rows ? ih : FAR_ABOVE) * 65536 + (iw & 65535);  // rows beyond the tensor look like padding
    }
    const int column = oc0 + threadIdx.x % QUADS_OC * 4;
    weight_valid = column < s.OC;
    weight_source = weight + (k0 + threadIdx.x / QUADS_OC) * (long long)s.OC + column;
    const int k = k0 + threadIdx.x % QUADS_K * 4, tap = k / s.C;
    c = k - tap * s.C;
    kh = tap / s.KW;
    kw = tap - kh * s.KW;
    enter_tap(s);
  }

  __device__ __forceinline__ void enter_tap(const ConvShape& s) {
    UNROLL
    for (int l = 0; l < LOADS_PX; l++) {
      const int ih = (origin[l] >> 16) + kh, iw = (short)origin[l] + kw;
      pixel_valid[l] = kh < s.KH && (unsigned)ih < (unsigned)s.H && (unsigned)iw < (unsigned)s.W;
    }
  }

  // Start fetching the next tile. Taps beyond the last one read as zero.
  __device__ __forceinline__ void fetch(const ConvShape& s, PixelTile& pixels, WeightTile& weights) {
    const int shift = ((kh * s.W + kw) * s.C + c) * 4;
    const int quad = threadIdx.x % QUADS_K * 4, column = threadIdx.x % QUADS_OC * 4;
    UNROLL
    for (int l = 0; l < LOADS_PX; l++)
      copy16_async(&pixels[threadIdx.x / QUADS_K + l * ROWS_PER_LOAD][quad], first + (pixel_offset[l] + shift),
                   pixel_valid[l]);
    UNROLL
    for (int l = 0; l < LOADS_OC; l++)
      copy16_async(&weights[threadIdx.x / QUADS_OC + l * WEIGHT_ROWS_PER_LOAD][column],
                   weight_source + l * WEIGHT_ROWS_PER_LOAD * s.OC, weight_valid);
    weight_source += TILE_K * s.OC;
    c += TILE_K;
    if (c < s.C) return;
    do {
      c -= s.C;
      if (++kw == s.KW) {
        kw = 0;
        kh++;
      }
    } while (c >= s.C);
    enter_tap(s);
  }
};

__device__ __forceinline__ void multiply_tile(Accumulators& acc, const PixelTile& pixels, const WeightTile& weights,
                                              int thread_px, int thread_oc) {
  UNROLL
  for (int q = 0; q < QUADS_K; q++) {
    float a[THREAD_PX][4];
    UNROLL
    for (int i = 0; i < THREAD_PX; i++) unpack4(a[i], load4(&pixels[tile_row(thread_px, i)][q * 4]));
    UNROLL
    for (int kk = 0; kk < 4; kk++) {
      float b[THREAD_OC];
      UNROLL
      for (int j = 0; j < THREAD_OC; j += 4) {
        unpack4(b + j, load4(&weights[q * 4 + kk][thread_oc * 4 + j * THREADS_OC]));
      }
      UNROLL
      for (int i = 0; i < THREAD_PX; i++) {
        LANES
        for (int step = 0; step < THREAD_OC; step++) {
          const int j = serpentine(i, step, THREAD_OC);
          acc[i][j] = fmaf(a[i][kk], b[j], acc[i][j]);
        }
      }
    }
  }
}

// Place of 4 running sums of this thread in shared memory: neighbouring threads are neighbours.
__device__ __forceinline__ float* running_sum(float* sums, int i, int j) {
  return sums + ((i * THREAD_OC + j) / 4 * THREADS + threadIdx.x) * 4;
}

// A group ends: its sum joins the running sum.
__device__ __forceinline__ void add_group(Accumulators& acc, float* sums, bool first) {
  UNROLL
  for (int i = 0; i < THREAD_PX; i++) {
    UNROLL
    for (int j = 0; j < THREAD_OC; j += 4) {
      float total[4];
      if (!first) unpack4(total, load4(running_sum(sums, i, j)));
      UNROLL
      for (int v = 0; v < 4; v++) {
        total[v] = first ? acc[i][j + v] : total[v] + acc[i][j + v];
        acc[i][j + v] = 0.f;
      }
      store4(running_sum(sums, i, j), pack4(total));
    }
  }
}

// A group ends and blocks share the reduction: its sum goes to memory.
__device__ __forceinline__ void store_group(Accumulators& acc, float* partial, const ConvShape& s, int group, int row0,
                                            int oc0, int thread_px, int thread_oc) {
  UNROLL
  for (int i = 0; i < THREAD_PX; i++) {
    const long long row = row0 + gemm_row(tile_row(thread_px, i));
    UNROLL
    for (int j = 0; j < THREAD_OC; j += 4) {
      const int oc = oc0 + thread_oc * 4 + j * THREADS_OC;
      if (row < s.rows && oc < s.OC) store4(partial + (group * (long long)s.rows + row) * s.OC + oc, pack4(acc[i] + j));
      UNROLL
      for (int v = 0; v < 4; v++) acc[i][j + v] = 0.f;
    }
  }
}

__device__ __forceinline__ void store_tile(float* out, float* sums, const float* bias, const ConvShape& s, int row0,
                                           int oc0, int thread_px, int thread_oc, int out_channels,
                                           Activation activation) {
  UNROLL
  for (int j = 0; j < THREAD_OC; j += 4) {
    const int oc = oc0 + thread_oc * 4 + j * THREADS_OC;
    if (oc >= s.OC) continue;
    float b[4], value[THREAD_PX][4];
    unpack4(b, load4(bias + oc));
    UNROLL
    for (int i = 0; i < THREAD_PX; i++) {
      unpack4(value[i], load4(running_sum(sums, i, j)));
      UNROLL
      for (int v = 0; v < 4; v++) value[i][v] = finish_conv(value[i][v], b[v], oc + v < out_channels, activation);
    }
    UNROLL
    for (int i = 0; i < THREAD_PX; i += POOL ? 4 : 1) {
      const long long row = row0 + gemm_row(tile_row(thread_px, i));
      if (row >= s.rows) continue;
      if (POOL) {
        UNROLL
        for (int v = 0; v < 4; v++) value[i][v] = window_max(&value[i][v], 4);
      }
      store4(out + (POOL ? row / 4 : row) * s.OC + oc, pack4(value[i]));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv_igemm_f32(float* __restrict__ out, float* __restrict__ partial, const float* __restrict__ inp,
               const float* __restrict__ weight, const float* __restrict__ bias, int rows, int H, int W, int C, int OH,
               int OW, int OC, int KH, int KW, int SH, int SW, int PT, int PL, int out_channels, int group_tiles,
               int groups_per_block, ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER GUARD_PARAMETERS) {
  __shared__ __align__(16) PixelTile pixel_tile[STAGES];
  __shared__ __align__(16) WeightTile weight_tile[STAGES];
  DYNAMIC_SHARED(float, running_sums);
  const ConvShape s{rows, H, W, C, OH, OW, OC, KH, KW, SH, SW, PT, PL};
  const int thread_oc = threadIdx.x % THREADS_OC, thread_px = threadIdx.x / THREADS_OC;
  const int row0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC;
  RETURN_UNLESS_NEEDED_BY(row0 / (OH * OW), (row0 + TILE_PX - 1) / (OH * OW));
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  const int tiles = (KH * KW * C + TILE_K - 1) / TILE_K;
  const int first_group = blockIdx.z * groups_per_block, first_tile = first_group * group_tiles;
  const int last_tile = min(tiles, first_tile + groups_per_block * group_tiles);

  Fetcher fetcher(s, inp, weight, row0, oc0, first_tile * TILE_K);
  Accumulators acc;
  UNROLL
  for (int i = 0; i < THREAD_PX; i++) {
    UNROLL
    for (int j = 0; j < THREAD_OC; j++) acc[i][j] = 0.f;
  }

  UNROLL
  for (int ahead = 0; ahead < STAGES - 1; ahead++) {
    if (first_tile + ahead < last_tile) fetcher.fetch(s, pixel_tile[ahead], weight_tile[ahead]);
    copy_async_commit();
  }
  int group = first_group, left_in_group = group_tiles, stage = 0;
  for (int tile = first_tile; tile < last_tile; tile++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the tile has landed for everybody, and nobody reads the stage that is filled next
    TIMED(if (threadIdx.x == 0 && tile == first_tile) STAMP(OPERANDS);)
    const int next = stage == 0 ? STAGES - 1 : stage - 1;
    if (tile + STAGES - 1 < last_tile) fetcher.fetch(s, pixel_tile[next], weight_tile[next]);
    copy_async_commit();
    multiply_tile(acc, pixel_tile[stage], weight_tile[stage], thread_px, thread_oc);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
    if (--left_in_group > 0 && tile + 1 < last_tile) continue;
    if (gridDim.z > 1)
      store_group(acc, partial, s, group, row0, oc0, thread_px, thread_oc);
    else
      add_group(acc, running_sums, group == first_group);
    left_in_group = group_tiles;
    group++;
  }
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
  if (gridDim.z == 1)
    store_tile(out, running_sums, bias, s, row0, oc0, thread_px, thread_oc, out_channels, ACTIVATION(activation));
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}

// Adds the group sums of a split reduction in order, then as above. partial (groups, rows, OC). Thread: 4 channels of
// an output.
extern "C" __global__ void __launch_bounds__(256)
conv_igemm_reduce_f32(float* __restrict__ out, const float* __restrict__ partial, const float* __restrict__ bias,
                      int rows, int OC, int out_channels, int groups,
                      ACTIVATION_PARAMETER(activation) GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  constexpr int WINDOW = POOL ? 4 : 1;
  const unsigned quads = OC / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;  // rows * OC / 4 fits: the planner sees to it
  const long long pixel = index / quads;
  const int oc = index % quads * 4;
  if (pixel * WINDOW >= rows) return;
  float b[4], value[WINDOW][4];
  unpack4(b, load4(bias + oc));
  UNROLL
  for (int w = 0; w < WINDOW; w++) {
    const float* source = partial + (pixel * WINDOW + w) * OC + oc;
    unpack4(value[w], load4(source));
    for (int g = 1; g < groups; g++) {
      float sum[4];
      unpack4(sum, load4(source += (long long)rows * OC));
      UNROLL
      for (int v = 0; v < 4; v++) value[w][v] += sum[v];
    }
    UNROLL
    for (int v = 0; v < 4; v++)
      value[w][v] = finish_conv(value[w][v], b[v], oc + v < out_channels, ACTIVATION(activation));
  }
  if (POOL) {
    UNROLL
    for (int v = 0; v < 4; v++) value[0][v] = window_max(&value[0][v], 4);
  }
  store4(out + pixel * OC + oc, pack4(value[0]));
}
