// conv_igemm_f32: out[n,oh,ow,oc] = [pool2x2]([relu](bias[oc] + sum_{kh,kw,c} inp[n, oh*SH-PT+kh, ow*SW-PL+kw, c] * weight[kh,kw,c,oc]))
// Layouts:  inp (N,H,W,C) float, weight (KH*KW*C rounded up to 32, OC) float, the excess zero, bias (OC) float, out (N,OH,OW,OC) float; C and OC padded to multiples of 4.
// Mapping:  implicit GEMM. Rows are output pixels, columns are output channels, the reduction k runs over (kh, kw, c).
//           Block: TILE_PX rows x TILE_OC columns x some reduction groups (blockIdx.z). Thread: THREAD_PX rows x THREAD_OC columns,
//           lane % (TILE_OC/THREAD_OC) along columns. With POOL four consecutive rows of a thread are one 2x2 pooling window.
// Tiles:    TILE_PX (128), TILE_OC (64), TILE_K (16), THREAD_PX (8), THREAD_OC (8), STAGES (3), MIN_BLOCKS per multiprocessor (3), POOL (0).
// Shared:   4*STAGES*(TILE_PX*(TILE_K+4) + TILE_K*TILE_OC) bytes static, 4*TILE_PX*TILE_OC dynamic (the running sums);
//           (TILE_PX/THREAD_PX)*(TILE_OC/THREAD_OC) threads.
// Cost:     2*N*OH*OW*OC*KH*KW*C FLOP. Global reads per block and k: TILE_PX + TILE_OC floats, that is
//           (1/TILE_OC + 1/TILE_PX)*KH*KW*C floats per output. 16 shared 16-byte reads per 256 FFMA of a thread.
// Sums:     the reduction is cut into groups of `group_tiles` k-tiles. Each group is one sequential FFMA chain from zero, the group
//           sums are added in order. So the bits depend on the group length alone, never on tiles, splits or the batch.
//           gridDim.z > 1: groups go to `partial` and conv_igemm_reduce_f32 adds them, in the same order.
// Edges:    any KH, KW, stride, padding; rows and columns beyond the tensor are loaded as zero and not stored; columns from out_channels
//           on are stored as zero.
// Variants: running sums in registers instead of shared memory cost 60 registers and a third of the resident warps.
// Why:      the portable fp32 workhorse: no column matrix in memory, one kernel for every layer, runs from sm_75 up and on the CPU.
#include "common.cuh"

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
constexpr int QUADS_K = TILE_K / 4;                         // 16-byte vectors along k in a row of the pixel tile
constexpr int QUADS_OC = TILE_OC / 4;                       // 16-byte vectors in a row of the weight tile
constexpr int ROWS_PER_LOAD = THREADS / QUADS_K;            // pixel rows that all threads together fetch at once
constexpr int LOADS_PX = TILE_PX / ROWS_PER_LOAD;           // 16-byte vectors of the pixel tile per thread
constexpr int LOADS_OC = TILE_K * QUADS_OC / THREADS;       // 16-byte vectors of the weight tile per thread
constexpr int WEIGHT_ROWS_PER_LOAD = THREADS / QUADS_OC;    // weight rows that all threads together fetch at once
constexpr int FAR_ABOVE = -32768;                           // image row of what must read as zero; maps have at most 32767 rows
constexpr int PITCH = TILE_K + 4;                           // floats; 4 more put the rows of a warp in different banks

static_assert(TILE_PX % THREAD_PX == 0 && TILE_OC % THREAD_OC == 0, "threads must cover the tile");
static_assert(TILE_K % 4 == 0, "the reduction is fetched in 16-byte vectors");
static_assert(THREAD_OC % 4 == 0, "columns are read and stored in 16-byte vectors");
static_assert(THREAD_PX % 4 == 0, "a thread holds whole 2x2 pooling windows");
static_assert(THREADS % QUADS_K == 0 && TILE_PX % ROWS_PER_LOAD == 0, "the pixel tile is fetched in whole rounds");
static_assert(TILE_K * QUADS_OC % THREADS == 0, "the weight tile is fetched in whole rounds");
static_assert(THREADS % QUADS_OC == 0, "a thread fetches weights of one column");
static_assert(STAGES >= 2, "one stage is filled while another is read");

// Pixel that GEMM row `row` stands for. With POOL, rows 4i..4i+3 are the window of pooled pixel i.
__device__ __forceinline__ void row_to_pixel(int row, int OH, int OW, int& n, int& oh, int& ow) {
  if (POOL) {
    const int pooled_w = OW / 2, pooled_hw = pooled_w * (OH / 2);
    const int window = row / 4, pixel = window % pooled_hw;
    n = window / pooled_hw;
    oh = pixel / pooled_w * 2 + row % 4 / 2;
    ow = pixel % pooled_w * 2 + row % 2;
  } else {
    const int hw = OH * OW, pixel = row % hw;
    n = row / hw;
    oh = pixel / OW;
    ow = pixel % OW;
  }
}

// Tile row that holds accumulator row i of a thread: the threads of a warp read neighbouring rows, so that their banks differ.
__device__ __forceinline__ int tile_row(int thread_px, int i) { return thread_px + i * THREADS_PX; }

// GEMM row, within the block's rows, that tile row r stands for: accumulator rows 4q..4q+3 of a thread are consecutive GEMM rows.
__device__ __forceinline__ int gemm_row(int r) {
  const int i = r / THREADS_PX, thread_px = r % THREADS_PX;
  return (i / 4 * THREADS_PX + thread_px) * 4 + i % 4;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv_igemm_f32(float* __restrict__ out, float* __restrict__ partial, const float* __restrict__ inp, const float* __restrict__ weight,
               const float* __restrict__ bias, int rows, int H, int W, int C, int OH, int OW, int OC, int KH, int KW, int SH, int SW,
               int PT, int PL, int out_channels, int group_tiles, int groups_per_block, int apply_relu) {
  __shared__ __align__(16) float pixel_tile[STAGES][TILE_PX][PITCH];
  __shared__ __align__(16) float weight_tile[STAGES][TILE_K][TILE_OC];
  DYNAMIC_SHARED(float, running_sums);  // [THREAD_PX * THREAD_OC / 4][THREADS][4]
  const int tid = threadIdx.x;
  const int row0 = blockIdx.x * TILE_PX, oc0 = blockIdx.y * TILE_OC;
  const int tiles = (KH * KW * C + TILE_K - 1) / TILE_K;
  const int first_tile = blockIdx.z * groups_per_block * group_tiles;
  const int last_tile = min(tiles, first_tile + groups_per_block * group_tiles);

  // ---- what this thread fetches of each tile: 16 bytes at reduction offset `quad` of LOADS_PX pixel rows, and LOADS_OC vectors of
  // weights in one column. What does not change from tile to tile is computed here: the main loop must be almost pure FFMA.
  const int quad = tid % QUADS_K * 4;
  const int hw = POOL ? OH / 2 * (OW / 2) * 4 : OH * OW;
  const float* first_image = inp + (long long)(row0 / hw) * H * W * C;  // rows of a block lie close: offsets from here are 32 bits, in bytes
  int origin[LOADS_PX], pixel_offset[LOADS_PX], pixel_valid[LOADS_PX];
UNROLL
  for (int l = 0; l < LOADS_PX; l++) {
    const int row = row0 + gemm_row(tid / QUADS_K + l * ROWS_PER_LOAD);
    int n, oh, ow;
    row_to_pixel(row, OH, OW, n, oh, ow);
    const int ih0 = row < rows ? oh * SH - PT : FAR_ABOVE, iw0 = ow * SW - PL;  // rows beyond the tensor look like padding
    origin[l] = ih0 * 65536 + (iw0 & 65535);
    pixel_offset[l] = (((n - row0 / hw) * H + oh * SH - PT) * W + iw0) * C * 4;  // of tap (0, 0): may be outside, then it is not read
  }
  const int weight_row = tid / QUADS_OC, weight_column = tid % QUADS_OC * 4;
  const bool weight_valid = oc0 + weight_column < OC;
  const float* weight_source = weight + (first_tile * TILE_K + weight_row) * (long long)OC + oc0 + weight_column;
  // (kh, kw, c) of the next fetch, advanced by TILE_K each time instead of divided. Taps beyond the last one read as zero.
  int kh, kw, c;
  {
    const int k = first_tile * TILE_K + quad, tap = k / C;
    c = k - tap * C;
    kh = tap / KW;
    kw = tap - kh * KW;
  }
  auto enter_tap = [&] {
UNROLL
    for (int l = 0; l < LOADS_PX; l++) {
      const int ih = (origin[l] >> 16) + kh, iw = (short)origin[l] + kw;
      pixel_valid[l] = kh < KH && (unsigned)ih < (unsigned)H && (unsigned)iw < (unsigned)W;
    }
  };
  enter_tap();

  auto fetch = [&](int stage) {
    const int shift = ((kh * W + kw) * C + c) * 4;
UNROLL
    for (int l = 0; l < LOADS_PX; l++)
      copy16_async(&pixel_tile[stage][tid / QUADS_K + l * ROWS_PER_LOAD][quad],
                   reinterpret_cast<const char*>(first_image) + (pixel_offset[l] + shift), pixel_valid[l]);
UNROLL
    for (int l = 0; l < LOADS_OC; l++)
      copy16_async(&weight_tile[stage][weight_row + l * WEIGHT_ROWS_PER_LOAD][weight_column],
                   weight_source + l * WEIGHT_ROWS_PER_LOAD * OC, weight_valid);
    weight_source += TILE_K * OC;
    c += TILE_K;
    if (c < C) return;
    do {
      c -= C;
      if (++kw == KW) {
        kw = 0;
        kh++;
      }
    } while (c >= C);
    enter_tap();
  };

  const int thread_oc = tid % THREADS_OC, thread_px = tid / THREADS_OC;
  float acc[THREAD_PX][THREAD_OC];
UNROLL
  for (int i = 0; i < THREAD_PX; i++)
UNROLL
    for (int j = 0; j < THREAD_OC; j++) acc[i][j] = 0.f;

  // ---- main loop: STAGES - 1 tiles in flight
UNROLL
  for (int ahead = 0; ahead < STAGES - 1; ahead++) {
    if (first_tile + ahead < last_tile) fetch(ahead);
    copy_async_commit();
  }
  const int first_group = blockIdx.z * groups_per_block;
  int group = first_group, left_in_group = group_tiles, stage = 0;
  for (int tile = first_tile; tile < last_tile; tile++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the tile has landed for everybody, and nobody reads the stage that is filled next
    if (tile + STAGES - 1 < last_tile) fetch(stage == 0 ? STAGES - 1 : stage - 1);
    copy_async_commit();
UNROLL
    for (int q = 0; q < QUADS_K; q++) {
      float a[THREAD_PX][4];
UNROLL
      for (int i = 0; i < THREAD_PX; i++) unpack4(a[i], load4(&pixel_tile[stage][tile_row(thread_px, i)][q * 4]));
UNROLL
      for (int kk = 0; kk < 4; kk++) {
        float b[THREAD_OC];
UNROLL
        for (int j = 0; j < THREAD_OC; j += 4)
          unpack4(b + j, load4(&weight_tile[stage][q * 4 + kk][thread_oc * 4 + j * THREADS_OC]));
UNROLL
        for (int i = 0; i < THREAD_PX; i++)
LANES
          for (int step = 0; step < THREAD_OC; step++) {
            const int j = serpentine(i, step, THREAD_OC);
            acc[i][j] = fmaf(a[i][kk], b[j], acc[i][j]);
          }
      }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
    if (--left_in_group > 0 && tile + 1 < last_tile) continue;

    // ---- a group ends: its sum joins the running sum, or goes to memory when blocks share the reduction
UNROLL
    for (int i = 0; i < THREAD_PX; i++) {
      const long long row = row0 + gemm_row(tile_row(thread_px, i));
UNROLL
      for (int j = 0; j < THREAD_OC; j += 4) {
        const int oc = oc0 + thread_oc * 4 + j * THREADS_OC;
        float* sum = running_sums + ((i * THREAD_OC + j) / 4 * THREADS + tid) * 4;
        if (gridDim.z > 1) {
          if (row < rows && oc < OC) store4(partial + (group * (long long)rows + row) * OC + oc, pack4(acc[i] + j));
        } else if (group == first_group) {
          store4(sum, pack4(acc[i] + j));
        } else {
          float before[4];
          unpack4(before, load4(sum));
          store4(sum, make_float4(before[0] + acc[i][j], before[1] + acc[i][j + 1], before[2] + acc[i][j + 2], before[3] + acc[i][j + 3]));
        }
      }
UNROLL
      for (int j = 0; j < THREAD_OC; j++) acc[i][j] = 0.f;
    }
    left_in_group = group_tiles;
    group++;
  }
  if (gridDim.z > 1) return;

  // ---- epilogue: bias, ReLU, pooling
UNROLL
  for (int j = 0; j < THREAD_OC; j += 4) {
    const int oc = oc0 + thread_oc * 4 + j * THREADS_OC;
    if (oc >= OC) continue;
    float b[4], value[THREAD_PX][4];
    unpack4(b, load4(bias + oc));
UNROLL
    for (int i = 0; i < THREAD_PX; i++) {
      unpack4(value[i], load4(running_sums + ((i * THREAD_OC + j) / 4 * THREADS + tid) * 4));
UNROLL
      for (int v = 0; v < 4; v++) {
        value[i][v] += b[v];
        if (apply_relu) value[i][v] = relu(value[i][v]);
        if (oc + v >= out_channels) value[i][v] = 0.f;  // infinity times a padded weight is NaN
      }
    }
UNROLL
    for (int i = 0; i < THREAD_PX; i += POOL ? 4 : 1) {
      const long long row = row0 + gemm_row(tile_row(thread_px, i));
      if (row >= rows) continue;
      if (POOL)
UNROLL
        for (int v = 0; v < 4; v++)
          value[i][v] = max_nan(max_nan(value[i][v], value[i + 1][v]), max_nan(value[i + 2][v], value[i + 3][v]));
      store4(out + (POOL ? row / 4 : row) * OC + oc, pack4(value[i]));
    }
  }
}

// Adds the group sums of a split reduction in order, then bias, ReLU, pooling. partial (groups, rows, OC). Thread: 4 channels of one output.
extern "C" __global__ void __launch_bounds__(256)
conv_igemm_reduce_f32(float* __restrict__ out, const float* __restrict__ partial, const float* __restrict__ bias, int rows, int OC, int out_channels,
                      int groups, int apply_relu) {
  constexpr int windows = POOL ? 4 : 1;
  const unsigned quads = OC / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;  // rows * OC / 4 fits: the planner sees to it
  const long long pixel = index / quads;
  const int oc = index % quads * 4;
  if (pixel * windows >= rows) return;
  float b[4], best[4];
  unpack4(b, load4(bias + oc));
UNROLL
  for (int w = 0; w < windows; w++) {
    float sum[4];
    unpack4(sum, load4(partial + (pixel * windows + w) * OC + oc));
    for (int g = 1; g < groups; g++) {
      float p[4];
      unpack4(p, load4(partial + ((long long)g * rows + pixel * windows + w) * OC + oc));
UNROLL
      for (int v = 0; v < 4; v++) sum[v] += p[v];
    }
UNROLL
    for (int v = 0; v < 4; v++) {
      const float biased = sum[v] + b[v];
      const float value = oc + v >= out_channels ? 0.f : apply_relu ? relu(biased) : biased;
      best[v] = w == 0 ? value : max_nan(best[v], value);
    }
  }
  store4(out + pixel * OC + oc, pack4(best));
}
