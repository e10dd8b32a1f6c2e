// conv_wgmma_small: out[n,y,x,oc] = [pool2x2]([activation](bias[oc] + dequant[oc] * sum over kh, kw, c of
//                   inp[n,y+kh-1,x+kw-1,c] * weight[kh,kw,oc,c])), finished and stored as wgmma_tile.cuh says
// Layouts:  inp (N,H,W,CP), its map's box {block, 10, TILE_ROWS+2, 1}, where a block is BLOCK_BYTES of channels; weight
//           (CP/block, tap, plane, OCP, block) as {block, OCP, the rest}, box {block, 64, TAPS_PER_STAGE*planes}; out
//           (N,OH,OW,OCP), box {64, 8, STORE_ROWS, 1}, with POOL {64, 4, STORE_ROWS/2, 1}; with KEEP also kept
//           (N,H,W,OCP), box {64, 8, STORE_ROWS, 1}: out as it is without POOL.
//           F16_PAIR: 2N images, first all hi. The swizzles match the boxes' rows. bias, dequant, out_scale: OCP
//           floats. height, width: H, W.
// Mapping:  block: 64 output channels x TILE_ROWS rows of 8 pixels x one of SPLITS shares of the channel blocks;
//           blockIdx.x counts images, tiles_y, tiles_x, oc_tiles, shares, the last fastest. One warpgroup multiplies,
//           one more warp copies, all but the first pixels.
// Tiles:    ELEMENT (1), OUT_ELEMENT (ELEMENT; of 1 also 3: float16 and what its rounding left), BLOCK_BYTES (128),
//           TILE_ROWS (14), SPLITS (1), EXCHANGE (0): 1 a cluster of two, 2 the workspace; POOL (0), KEEP (0; with
//           POOL: the map itself is stored, too), HALO_STAGES (2), TAPS_PER_STAGE (3), WEIGHT_STAGES (6),
//           BLOCKS_PER_SM (1), PROMOTE_TAPS (3)
// Shared:   SHARED_BYTES below, dynamic; 160 threads. EXCHANGE 2, each tile: SPLITS * SPLITS * SLICE_ROWS * 2048 bytes
//           of workspace, and a counter that the host zeroes before a run.
// Cost:     2*N*H*W*OC*9*C FLOP; a block reads its weights once, its pixels 1.25 * (1 + 2/rows) times, mostly from L2.
// Sums:     a share in the order of blocks, taps, channels, then the shares in theirs: a matter of SPLITS alone.
// Edges:    any N, H, W; SPLITS <= CP/block; with HALO_STAGES 1 (unless F16_PAIR) SPLITS = CP/block. EXCHANGE 2 waits
//           for other blocks, so all must be resident: gridDim.x <= multiprocessors * BLOCKS_PER_SM.
// Why:      one image has few tiles, so they are small, and deep layers split the sum. A thread can start a copy each
//           0.18 us, so a copy holds several taps; weights arrive while the previous kernel ends.
#include "kept_maps.cuh"
#include "split_exchange.cuh"
#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT ELEMENT
#endif
#ifndef BLOCK_BYTES
#define BLOCK_BYTES 128
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 14
#endif
#ifndef SPLITS
#define SPLITS 1
#endif
#ifndef EXCHANGE
#define EXCHANGE 0
#endif
#ifndef POOL
#define POOL 0
#endif
#ifndef PROMOTE_TAPS
#define PROMOTE_TAPS 3
#endif
#ifndef HALO_STAGES
#define HALO_STAGES 2
#endif
#ifndef TAPS_PER_STAGE
#define TAPS_PER_STAGE 3
#endif
#ifndef WEIGHT_STAGES
#define WEIGHT_STAGES 6
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
typedef Stored<ELEMENT> E;
typedef Stored<OUT_ELEMENT> Out;
typedef E::Sum Sum;

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
constexpr bool PAIR = E::PLANES == 2;
constexpr int CONSUMERS = 128;  // the warpgroup that multiplies
constexpr int THREADS = CONSUMERS + 32;
constexpr int CONSUMER_BARRIER = 1;  // 0 is that of __syncthreads
constexpr int SUMS = TILE_ROWS * 4;  // of a thread: two channels x two pixels of each row
constexpr int BLOCK_CHANNELS = BLOCK_BYTES / E::BYTES;
constexpr Swizzle SWIZZLE = BLOCK_BYTES == 128 ? SWIZZLE_128B : SWIZZLE_64B;
constexpr int HALO_W = 10;
constexpr int HALO_BYTES = HALO_W * (TILE_ROWS + 2) * BLOCK_BYTES;
constexpr int HALO_PLANE = round_up(HALO_BYTES, 1024);  // the swizzle pattern starts at multiples of 1024
constexpr int HALO_STAGE = E::PLANES * HALO_PLANE;
constexpr int WEIGHT_PLANE = 64 * BLOCK_BYTES;
constexpr int WEIGHT_TAP = E::PLANES * WEIGHT_PLANE;
constexpr int WEIGHT_STAGE = TAPS_PER_STAGE * WEIGHT_TAP;
constexpr int STAGES_PER_BLOCK = 9 / TAPS_PER_STAGE;

// Each share of a split finishes a slice of the tile's rows (the last may have fewer rows, or none).
constexpr int SLICE_ROWS = round_up((TILE_ROWS + SPLITS - 1) / SPLITS, POOL ? 2 : 1);
constexpr int SLICE_BYTES = SLICE_ROWS * 2048;  // its sums: 64 channels x 8 pixels of 4 bytes a row
constexpr int STORE_ROWS = TILE_ROWS % SLICE_ROWS == 0 ? SLICE_ROWS : POOL ? 2 : 1;  // no store may leave the tile
typedef StagedTile<OUT_ELEMENT, SLICE_ROWS, POOL> Staged;
typedef StagedTile<OUT_ELEMENT, SLICE_ROWS, false> Kept;

// The epilogue uses the memory of the pipeline again. EARLY: the sums of the other block may come while the last
// products are under way, into the stage of pixels that these do not read.
constexpr bool EARLY = HALO_STAGES == 2 && HALO_STAGE >= SLICE_BYTES;
constexpr int RECEIVED_BYTES = EXCHANGE != 1 ? 0 : EARLY ? 2 * HALO_STAGE : SLICE_BYTES;
constexpr int EPILOGUE_BYTES = round_up(RECEIVED_BYTES + Staged::BYTES + (KEEP ? Kept::BYTES : 0), 1024);
constexpr int LOADED_BYTES = HALO_STAGES * HALO_STAGE + WEIGHT_STAGES * WEIGHT_STAGE;
constexpr int PIPELINE_BYTES = LOADED_BYTES > EPILOGUE_BYTES ? LOADED_BYTES : EPILOGUE_BYTES;
constexpr int SHARED_BYTES = PIPELINE_BYTES + 2048;  // barriers, and up to 1023 bytes before the first multiple of 1024

static_assert(BLOCK_BYTES == 128 || (BLOCK_BYTES == 64 && E::BYTES == 1), "64 channels are 128 bytes, or 64");
static_assert(OUT_ELEMENT == ELEMENT || (ELEMENT == F16 && OUT_ELEMENT == F16_PAIR), "only F16 is stored otherwise");
static_assert(TILE_ROWS % 2 == 0 && TILE_ROWS <= 32, "wgmma kernels have widths of 16 to 256 pixels in steps of 16");
static_assert(!KEEP || POOL, "without a pool the map is out itself");
static_assert(9 % TAPS_PER_STAGE == 0, "the taps fill whole weight stages");
static_assert(EXCHANGE == 0 ? SPLITS == 1 : EXCHANGE == 1 ? SPLITS == 2 : SPLITS > 1, "who exchanges has someone to");
static_assert(WEIGHT_STAGES > 1 || (TAPS_PER_STAGE == 9 && HALO_STAGES == 1), "a stage is given back a tap late");
static_assert(16 * (HALO_STAGES + WEIGHT_STAGES) + 8 <= 1024, "the barriers have 1024 bytes");
static_assert((SHARED_BYTES + 1024) * BLOCKS_PER_SM <= 228 * 1024, "shared memory of a multiprocessor");

// The compiler counts warps in fours, the hardware does not: three blocks of 5 warps fit with 128 registers.
constexpr int BOUND_THREADS = BLOCKS_PER_SM == 3 ? 256 : THREADS;
constexpr int BOUND_BLOCKS = BLOCKS_PER_SM == 3 ? 2 : BLOCKS_PER_SM;

// What this block computes.
struct Work {
  int x, y, n, oc;   // first pixel (of the convolution), image, first output channel
  int tile, rank;    // which tile, which share of it
  int first, count;  // its channel blocks
};

DEVICE Work work_of(int block, int channel_blocks, int oc_tiles, int tiles_x, int tiles_y) {
  Work work;
  work.tile = block / SPLITS;
  work.rank = block % SPLITS;
  work.oc = work.tile % oc_tiles * 64;
  const int spatial = work.tile / oc_tiles;
  work.x = spatial % tiles_x * 8;
  work.y = spatial / tiles_x % tiles_y * TILE_ROWS;
  work.n = spatial / tiles_x / tiles_y;
  work.first = work.rank * channel_blocks / SPLITS;
  work.count = (work.rank + 1) * channel_blocks / SPLITS - work.first;
  return work;
}

// Shared memory: the stages, then two barriers for each, which tell that it is full and that it is free again.
struct Pipeline {
  uint32_t start;

  DEVICE uint32_t halo(int stage) const { return start + stage * HALO_STAGE; }
  DEVICE uint32_t weights(int stage) const { return start + HALO_STAGES * HALO_STAGE + stage * WEIGHT_STAGE; }
  DEVICE uint32_t halo_full(int stage) const { return start + PIPELINE_BYTES + 16 * stage; }
  DEVICE uint32_t halo_free(int stage) const { return halo_full(stage) + 8; }
  DEVICE uint32_t weights_full(int stage) const { return halo_full(HALO_STAGES + stage); }
  DEVICE uint32_t weights_free(int stage) const { return weights_full(stage) + 8; }
  DEVICE uint32_t sums_arrived() const { return halo_full(HALO_STAGES + WEIGHT_STAGES); }

  DEVICE void init() const {
    for (int i = 0; i < HALO_STAGES + WEIGHT_STAGES; i++) {
      barrier_init(halo_full(i), 1);
      barrier_init(halo_free(i), CONSUMERS / 32);  // one arrival a warp
    }
    if (EXCHANGE == 1) barrier_init(sums_arrived(), 1);
    barrier_init_fence();
    if (EXCHANGE == 1) barrier_arrive_expect(sums_arrived(), SLICE_BYTES);
  }
};

// ---- The copies. The producer starts those of weights, which depend on no other kernel, and of later pixels. Behind a
// ring of weights the first pixels would arrive last: a consumer, which has to wait for them, starts their copies.

DEVICE void load_halo(const Pipeline& pipeline, int stage, const Work& work, int block, const CUtensorMap* inp,
                      int images) {
  const uint32_t full = pipeline.halo_full(stage);
  barrier_arrive_expect(full, E::PLANES * HALO_BYTES);
  UNROLL
  for (int plane = 0; plane < E::PLANES; plane++)
    load_box(pipeline.halo(stage) + plane * HALO_PLANE, inp, full, (work.first + block) * BLOCK_CHANNELS, work.x - 1,
             work.y - 1, work.n + plane * images);
}

DEVICE void load_first_halos(const Pipeline& pipeline, const Work& work, const CUtensorMap* inp, int images) {
  wait_for_previous_kernel();
  for (int i = 0; i < min(HALO_STAGES, work.count); i++) load_halo(pipeline, i, work, i, inp, images);
}

DEVICE void load_others(const Pipeline& pipeline, const Work& work, const CUtensorMap* inp, const CUtensorMap* weight,
                        int images, const Watch& watch) {
  RingPlace<HALO_STAGES> halo{0};     // of the second round: the first are the consumer's
  RingPlace<WEIGHT_STAGES> stage{1};  // the first wait for a free stage returns at once
  int halos = HALO_STAGES, stages = 0;
  const int all_stages = work.count * STAGES_PER_BLOCK;
  auto load_weights = [&] {
    const uint32_t full = pipeline.weights_full(stage.stage);
    barrier_wait(pipeline.weights_free(stage.stage), stage.parity, watch);
    const int tap = work.first * 9 + stages++ * TAPS_PER_STAGE;
    if (watch.lost) return;
    barrier_arrive_expect(full, WEIGHT_STAGE);
    load_box(pipeline.weights(stage.stage), weight, full, 0, work.oc, tap * E::PLANES);
    stage.advance();
  };
  auto load_next_halo = [&] {
    barrier_wait(pipeline.halo_free(halo.stage), halo.parity, watch);
    const int block = halos++;
    if (watch.lost) return;
    load_halo(pipeline, halo.stage, work, block, inp, images);
    halo.advance();
  };
  while (stages < WEIGHT_STAGES && stages < all_stages) load_weights();
  wait_for_previous_kernel();
  while (stages < all_stages) {
    load_weights();
    // A halo's stage is free when the products of its last user are done, which the weights after those make known.
    if (halos < work.count && stages >= (halos - HALO_STAGES + 1) * STAGES_PER_BLOCK + 1) load_next_halo();
  }
  while (halos < work.count) load_next_halo();
}

// ---- The consumers: they sum 64 channels x TILE_ROWS rows of 8 pixels.

// One tap of one channel block. F16_PAIR: hi * hi into `sum`, afresh every third tap, and hi * lo + lo * hi into `low`.
template <int LOW>
DEVICE void multiply_tap(Sum (&sum)[SUMS], Sum (&low)[LOW], uint64_t weights, uint64_t pixels, int tap, bool first) {
  typedef Wgmma<E::Operands, 8 * TILE_ROWS> Multiply;
  UNROLL
  for (int k = 0; k < BLOCK_BYTES / 32; k++) {
    const uint64_t w = weights + descriptor_step(32 * k), x = pixels + descriptor_step(32 * k);
    const bool accumulate = !first || k != 0;
    if constexpr (PAIR) {
      Multiply::multiply(low, w + descriptor_step(WEIGHT_PLANE), x, accumulate);
      Multiply::multiply(low, w, x + descriptor_step(HALO_PLANE), 1);
      Multiply::multiply(sum, w, x, tap % PROMOTE_TAPS != 0 || k != 0);
    } else {
      Multiply::multiply(sum, w, x, accumulate);
    }
  }
}

template <int LENGTH, int SUM_LENGTH>
DEVICE void add_to(Sum (&target)[LENGTH], Sum (&sum)[SUM_LENGTH]) {
  pin(sum);
  UNROLL
  for (int i = 0; i < LENGTH; i++) target[i] += sum[i];
}

// Sums over this block's share of the channels. A stage is given back a tap late: waiting for its products would idle
// tensor cores. F16_PAIR does, every PROMOTE_TAPS taps, to add their sum, which they cut short, to one in registers.
DEVICE void sum_products(Sum (&sum)[SUMS], const Pipeline& pipeline, int count, const Watch& watch) {
  // One halo stage, given back a tap late, is enough for one channel block only. To know the count saves registers.
  const int blocks = HALO_STAGES == 1 && !PAIR ? 1 : count;
  const bool first = threadIdx.x % 32 == 0;
  Sum low[PAIR ? SUMS : 1], promoted[PAIR ? SUMS : 1] = {};
  RingPlace<HALO_STAGES> halo;
  RingPlace<WEIGHT_STAGES> stage;
  int used_weights = -1, used_halo = -1;
  for (int block = 0; block < blocks; block++) {
    barrier_wait(pipeline.halo_full(halo.stage), halo.parity, watch);
    const uint64_t corner = matrix_descriptor(pipeline.halo(halo.stage), HALO_W * BLOCK_BYTES, SWIZZLE);
    UNROLL
    for (int tap = 0; tap < 9; tap++) {
      const bool promote = PAIR && (tap % PROMOTE_TAPS == PROMOTE_TAPS - 1 || tap == 8);
      if (tap % TAPS_PER_STAGE == 0) barrier_wait(pipeline.weights_full(stage.stage), stage.parity, watch);
      const uint64_t weights = matrix_descriptor(pipeline.weights(stage.stage) + tap % TAPS_PER_STAGE * WEIGHT_TAP,
                                                 8 * BLOCK_BYTES, SWIZZLE);
      const bool speaker = first && !watch.lost;
      products_begin();
      multiply_tap(sum, low, weights, corner + descriptor_step((tap / 3 * HALO_W + tap % 3) * BLOCK_BYTES), tap,
                   block == 0 && tap == 0);
      products_commit();
      promote ? products_wait<0>() : products_wait<1>();
      if (speaker && used_weights >= 0) barrier_arrive(pipeline.weights_free(used_weights));
      if (speaker && tap == 0 && used_halo >= 0) barrier_arrive(pipeline.halo_free(used_halo));
      if (EXCHANGE == 1 && EARLY && tap == 0 && block == blocks - 1) cluster_arrive();  // the other stage is free
      used_weights = -1;
      if (tap % TAPS_PER_STAGE == TAPS_PER_STAGE - 1) {
        if (promote && speaker) barrier_arrive(pipeline.weights_free(stage.stage));
        if (!promote) used_weights = stage.stage;
        stage.advance();
      }
      if constexpr (PAIR) {
        if (promote) add_to(promoted, sum);
      }
    }
    if (PAIR && first && !watch.lost) barrier_arrive(pipeline.halo_free(halo.stage));
    if (!PAIR) used_halo = halo.stage;
    halo.advance();
  }
  products_wait<0>();
  pin(sum);
  if constexpr (PAIR) {
    add_to(promoted, low);
    UNROLL
    for (int i = 0; i < SUMS; i++) sum[i] = promoted[i];
  }
}

// ---- The end: finish a slice of rows, pool, store.

constexpr bool SEEN_POOLED = POOL && !KEEP;  // of what is stored the largest magnitudes are looked for here
struct Slice { int x, y, rows; };  // what a block finishes

// What of the staged values is stored: float16 beyond the map's edge do not count as magnitudes.
struct Inside {
  int rows;
  uint32_t halves;  // the pixels left of the map's right edge

  DEVICE Inside(const Slice& place, int height, int width) {
    constexpr int SCALE = SEEN_POOLED ? 2 : 1;
    const int lane = threadIdx.x % 4, columns = (width - place.x) / SCALE;
    rows = min(place.rows, height - place.y) / SCALE;
    halves = SEEN_POOLED ? (lane < columns ? MAGNITUDES : 0) : halves_before(columns, 2 * lane);
  }
  DEVICE uint32_t mask(int column) const {
    return SEEN_POOLED ? halves & halves_before(rows, 2 * column) : column < rows ? halves : 0;
  }
};

template <class Tile, int SCALE>
DEVICE void store_slice(const CUtensorMap* out, uint32_t staging, const Slice& place, const Work& work, int images) {
  constexpr int ROW_BYTES = 8 / SCALE * Out::ROW_BYTES / SCALE;  // staged bytes of a row of sums
  for (int row = 0; row < place.rows; row += STORE_ROWS) {
    UNROLL
    for (int plane = 0; plane < Out::PLANES; plane++)
      store_box(out, staging + plane * Tile::PLANE_BYTES + row * ROW_BYTES, work.oc, place.x / SCALE,
                (place.y + row) / SCALE, work.n + plane * images);
  }
}

DEVICE void finish_slice(const Sum (&sum)[SLICE_ROWS * 4], const Finish<OUT_ELEMENT>& finish, uint32_t staging,
                         const CUtensorMap* out, const CUtensorMap* kept, const Slice& place, const Work& work,
                         const Inside& inside, int images, unsigned* maximum) {
  uint32_t largest = 0;
  const auto look = [&](int column, uint32_t items) {
    largest = larger_magnitudes(largest, items, inside.mask(column));
  };
  stage_maps<OUT_ELEMENT, SLICE_ROWS, POOL>(sum, finish, staging, staging + Staged::BYTES, look);
  shared_writes_to_async();
  named_barrier(CONSUMER_BARRIER, CONSUMERS);  // the whole slice is staged
  if (threadIdx.x == 0) {
    store_slice<Staged, POOL ? 2 : 1>(out, staging, place, work, images);
    if constexpr (KEEP) store_slice<Kept, 1>(kept, staging + Staged::BYTES, place, work, images);
    store_commit();
    store_wait_read<0>();  // before the block ends and its shared memory with it
  }
  __syncwarp();
  if constexpr (Out::RECORDED) record_largest(largest, maximum);
}

extern "C" __global__ void
#if EXCHANGE == 1
__cluster_dims__(2, 1, 1)
#endif
    __launch_bounds__(BOUND_THREADS, BOUND_BLOCKS)
    conv_wgmma_small(const __grid_constant__ CUtensorMap inp, const __grid_constant__ CUtensorMap weight,
                     const __grid_constant__ CUtensorMap out, KEPT_PARAMETER const float* bias, const float* dequant,
                     const float* out_scale, float4* workspace, unsigned* counters, unsigned* maxima, int* error,
                     int step, int images, int channel_blocks, int oc_tiles, int tiles_x, int tiles_y, int height,
                     int width, int maxima_stride, ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  DYNAMIC_SHARED(unsigned char, dynamic);
  unsigned char* const memory = dynamic + (-shared_address(dynamic) & 1023);
  const Pipeline pipeline{shared_address(memory)};
  const Work work = work_of(blockIdx.x, channel_blocks, oc_tiles, tiles_x, tiles_y);
  const Watch watch{error, step};
  let_next_kernel_start();
  if (threadIdx.x == CONSUMERS) {
    prefetch_map(&inp);
    prefetch_map(&weight);
    prefetch_map(&out);
    pipeline.init();
  }
  __syncthreads();  // the barriers are initialised

  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS) load_others(pipeline, work, &inp, &weight, images, watch);
    __syncwarp();
    if (EXCHANGE == 1) cluster_arrive();  // as every thread of the cluster
    return;
  }
  if (threadIdx.x == 0) load_first_halos(pipeline, work, &inp, images);
  __syncwarp();
  int oc = work.oc;  // F16_PAIR has no registers for these while it multiplies: it reads them early, into L1, and again
  Finish<OUT_ELEMENT> finish(bias + oc, dequant + oc, out_scale + oc, ACTIVATION(activation));
  UNROLL
  for (int h = 0; PAIR && h < 2; h++)  // without this the compiler would keep the first
    asm volatile("" : "+r"(oc) : "f"(finish.bias[h]), "f"(finish.dequant[h]), "f"(finish.scale[h]));
  Sum sum[SUMS];
  TIMED(if (threadIdx.x == 0) barrier_wait(pipeline.halo_full(0), 0, watch), STAMP(OPERANDS);)
  sum_products(sum, pipeline, work.count, watch);
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
  if constexpr (PAIR) finish = Finish<OUT_ELEMENT>(bias + oc, dequant + oc, out_scale + oc, ACTIVATION(activation));
  wait_for_previous_kernel();
  if (EXCHANGE == 1 && !EARLY) cluster_arrive();
  named_barrier(CONSUMER_BARRIER, CONSUMERS);  // all products have read their operands
  const int first_row = work.rank * SLICE_ROWS;
  const Slice place{work.x, work.y + first_row, min(SLICE_ROWS, TILE_ROWS - first_row)};
  const Inside inside(place, height, width);
  const uint32_t staging = shared_address(memory) + RECEIVED_BYTES;
  unsigned* const maximum = maxima + static_cast<long long>(work.n) * maxima_stride;
  Sum slice[SLICE_ROWS * 4];
  if constexpr (EXCHANGE == 0) {
    UNROLL
    for (int i = 0; i < SUMS; i++) slice[i] = sum[i];
  } else if constexpr (EXCHANGE == 1) {
    cluster_wait();  // the other block has room for what it receives
    const auto room = [=](int count) { return memory + (EARLY ? count % 2 * HALO_STAGE : 0); };
    exchange_in_cluster<SLICE_ROWS>(sum, slice, room(work.count), room(channel_blocks - work.count),
                                    pipeline.sums_arrived(), work.rank);
  } else {
    float4* const parts = workspace + static_cast<long long>(work.tile) * (SPLITS * SPLITS * SLICE_BYTES / 16);
    exchange_in_workspace<SPLITS, SLICE_ROWS>(sum, slice, parts, counters + work.tile, work.rank, CONSUMER_BARRIER,
                                              watch);
  }
  TIMED(if (threadIdx.x == 0) STAMP(EXCHANGED);)
  if (place.rows > 0) finish_slice(slice, finish, staging, &out, KEPT, place, work, inside, images, maximum);
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
