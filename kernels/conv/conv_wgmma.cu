// conv_wgmma: out[n,oc,y,x] = finish(sum over c, kh, kw of inp[n,c,y+kh-1,x+kw-1] * weight[oc,c,kh,kw]), 3x3, stride 1,
//           pad 1; finish is bias, activation and what wgmma_tile.cuh says; with POOL the largest of each 2x2 window.
// Layouts:  inp, out NHWC in ELEMENT and OUT_ELEMENT, channels padded to 64, F16_PAIR all `hi` images, then all `lo`;
//           weight (channel block, tap, plane, OCP, channels of a block), tap = 3 kh + kw, for bytes with the rows of
//           every 16 permuted: rows r, r + 8 are channels 2r, 2r + 1. bias, dequant, out_scale (OCP) float, the latter
//           two unused by F16 and BF16. maxima[n * maxima_stride]: see wgmma_tile.cuh. Maps, swizzled as wide as rows:
//           inp    {CP, W, H, planes * N}, box {block, HALO_W, HALO_H, 1}, a block is BLOCK_BYTES of channels
//           weight {block, OCP, blocks * 9 * planes}, box {block, WEIGHT_ROWS, STAGE_UNITS}
//           out    {OCP, OW, OH, planes * N}, box {64, TILE_W, TILE_ROWS, 1}; POOL: both halved, flat OW, TILE_ROWS
//           kept   (KEEP alone) {OCP, W, H, planes * N}, box {64, TILE_W, TILE_ROWS, 1}: out as it is without POOL
// Mapping:  a product of 64 output channels x PIXELS pixels x 32 bytes of channels; weights are operand a, pixels b.
//           One halo tile in shared memory serves all nine taps: a tap only moves the start of b's descriptor, because
//           the hardware swizzles by address bits. FLAT_PITCH 0: a tile is TILE_ROWS rows of 8 pixels, a group of 8
//           pixels is a row of the halo. FLAT_PITCH = W + 1: a tile is TILE_ROWS whole rows in one line; the zero left
//           of row y + 1 is also right of row y, and one junk column is not stored.
//           Grid: min(SMs, tiles) blocks walk the tiles, channels first. Block: warpgroup 0 is the producer (one thread
//           issues the loads), 1 and 2 multiply: two halves of 128 channels, or with PAIR_TILES two tiles of pixels.
//           tiles = oc_tiles * tiles_x * tiles_y * images.
// Tiles:    ELEMENT (1): 1-5, OUT_ELEMENT (ELEMENT; 4 and 5 mix, 1 may give 3: float16 and what its rounding left),
//           TILE_ROWS (28), FLAT_PITCH (0), PAIR_TILES (0),
//           POOL (0; flat: PAIR_TILES, no F16_PAIR), KEEP (0; with POOL, not flat: the map itself is stored, too),
//           BLOCK_BYTES (128; 64 for bytes where CP % 128 != 0),
//           HALO_STAGES (2), WEIGHT_STAGES (5), STAGE_UNITS (1: tap planes a weight stage), PROMOTE_TAPS (3).
// Shared:   SHARED_BYTES: both rings, a staging tile for each consumer, barriers; 384 threads, 24 and 240 registers.
// Cost:     2*N*OC*H*W*C*9 FLOP, three times that for F16_PAIR; a halo is read once per tile and its channel tiles.
// Sums:     float32 over channel blocks, then taps; F16_PAIR: hi*lo + lo*hi apart, hi*hi added to registers every
//           PROMOTE_TAPS taps, as tensor cores keep few bits below; int32, exact, for bytes. Fixed by the shape alone.
// Edges:    any N, H, W: TMA reads zeros outside and stores nothing there. OCP % 128 == 0 unless PAIR_TILES.
// Why:      the tensor cores are busy 80 % of the time from batch 8 up: each byte of shared memory serves 9 taps.
#include "kept_maps.cuh"

#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT ELEMENT
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 28
#endif
#ifndef FLAT_PITCH
#define FLAT_PITCH 0
#endif
#ifndef PAIR_TILES
#define PAIR_TILES 0
#endif
#ifndef POOL
#define POOL 0
#endif
#ifndef BLOCK_BYTES
#define BLOCK_BYTES 128
#endif
#ifndef PROMOTE_TAPS
#define PROMOTE_TAPS 3
#endif
#ifndef HALO_STAGES
#define HALO_STAGES 2
#endif
#ifndef WEIGHT_STAGES
#define WEIGHT_STAGES 5
#endif
#ifndef STAGE_UNITS
#define STAGE_UNITS 1
#endif

typedef Stored<ELEMENT> In;
typedef Stored<OUT_ELEMENT> Out;
constexpr int PLANES = In::PLANES;
constexpr bool FLAT = FLAT_PITCH != 0;
constexpr Swizzle SWIZZLE = BLOCK_BYTES == 128 ? SWIZZLE_128B : SWIZZLE_64B;

constexpr int TILE_W = FLAT ? FLAT_PITCH : 8;
constexpr int BLOCK_ROWS = PAIR_TILES ? 2 * TILE_ROWS : TILE_ROWS;  // image rows of a block's tile
constexpr int PIXELS = (TILE_ROWS * TILE_W + 15) / 16 * 16;         // of a product; those beyond the tile are junk
constexpr int HALO_W = FLAT ? FLAT_PITCH : 10;
constexpr int PIXELS_READ = (BLOCK_ROWS - TILE_ROWS) * HALO_W + PIXELS + 2 * HALO_W + 2;  // flat: junk is finite, too
constexpr int HALO_H = FLAT ? (PIXELS_READ + HALO_W - 1) / HALO_W : BLOCK_ROWS + 2;
constexpr int GROUP_BYTES = FLAT ? 8 * BLOCK_BYTES : HALO_W * BLOCK_BYTES;  // from 8 pixels of a product to the next 8

constexpr int HALO_BYTES = HALO_W * HALO_H * BLOCK_BYTES;
constexpr int HALO_PLANE = (HALO_BYTES + 1023) / 1024 * 1024;
constexpr int WEIGHT_ROWS = PAIR_TILES ? 64 : 128;
constexpr int UNIT_BYTES = WEIGHT_ROWS * BLOCK_BYTES;  // one tap of one plane
constexpr int WEIGHT_BYTES = STAGE_UNITS * UNIT_BYTES;
constexpr int BLOCK_UNITS = 9 * PLANES;

constexpr bool POOLED_LATER = FLAT && POOL;  // windows lie across threads, and across both tiles
constexpr bool POOLED_FIRST = POOL && !FLAT;
constexpr bool SEEN_POOLED = POOL && !KEEP;  // of what is stored the largest magnitudes are looked for here
typedef StagedTile<OUT_ELEMENT, PIXELS / 8, POOLED_FIRST> Staging;
typedef StagedTile<OUT_ELEMENT, PIXELS / 8, false> Kept;

constexpr int WEIGHTS_AT = HALO_STAGES * PLANES * HALO_PLANE;
constexpr int STAGING_AT = WEIGHTS_AT + WEIGHT_STAGES * WEIGHT_BYTES;
constexpr int POOLED_AT = STAGING_AT + 2 * Staging::BYTES;
constexpr int KEPT_AT = POOLED_AT + (POOLED_LATER ? TILE_ROWS * ((FLAT_PITCH - 1) / 2) * Out::ROW_BYTES : 0);
constexpr int BARRIERS_AT = KEPT_AT + (KEEP ? 2 * Kept::BYTES : 0);
constexpr int SHARED_BYTES = 1024 + BARRIERS_AT + 16 * (HALO_STAGES + WEIGHT_STAGES);  // 1024 to align

static_assert(TILE_ROWS % 2 == 0 || FLAT, "products are multiples of 16 pixels wide");
static_assert(!FLAT || FLAT_PITCH >= 8, "at most one junk pixel in 8");
static_assert(PIXELS <= 256, "the widest product of wgmma");
static_assert(HALO_W <= 256 && HALO_H <= 256, "the largest box of TMA");
static_assert(!POOLED_LATER || (PAIR_TILES && Out::PLANES == 1), "both tiles hold an even number of rows");
static_assert(!KEEP || POOLED_FIRST, "what is kept is stored as tiles of 8 pixels are");
static_assert(BLOCK_UNITS % STAGE_UNITS == 0, "weight stages end where a channel block ends");
static_assert(STAGE_UNITS == 1 || STAGE_UNITS % PLANES == 0, "a tap's planes lie in one stage or in one each");
static_assert(HALO_STAGES >= 2 && WEIGHT_STAGES >= (STAGE_UNITS == 1 ? 2 * PLANES : 2), "given back one tap late");
static_assert(Out::PLANES == PLANES || (ELEMENT == F16 && OUT_ELEMENT == F16_PAIR), "F16 may be stored with its rest");
static_assert(Out::BYTES == In::BYTES, "else only U8 and S8 mix");
static_assert(SHARED_BYTES <= 227 * 1024, "shared memory of a block");

// Addresses in shared memory.
struct Shared {
  uint32_t base;
  DEVICE uint32_t halo(int stage) const { return base + stage * PLANES * HALO_PLANE; }
  DEVICE uint32_t weights(int stage) const { return base + WEIGHTS_AT + stage * WEIGHT_BYTES; }
  DEVICE uint32_t pooled() const { return base + POOLED_AT; }
  DEVICE uint32_t staging(int consumer) const { return base + STAGING_AT + consumer * Staging::BYTES; }
  DEVICE uint32_t kept(int consumer) const { return base + KEPT_AT + consumer * Kept::BYTES; }
  DEVICE uint32_t halo_full(int stage) const { return base + BARRIERS_AT + 8 * stage; }
  DEVICE uint32_t halo_empty(int stage) const { return halo_full(HALO_STAGES + stage); }
  DEVICE uint32_t weights_full(int stage) const { return halo_full(2 * HALO_STAGES + stage); }
  DEVICE uint32_t weights_empty(int stage) const { return weights_full(WEIGHT_STAGES + stage); }
};

struct Tile { int oc, x, y, n; };  // first output channel, first pixel, image

struct Work {
  int images, channel_blocks, oc_tiles, tiles_x, tiles_y, tiles, height, width;
  DEVICE Tile tile(int index) const {
    const int place = index / oc_tiles, row = place / tiles_x;
    return {index % oc_tiles * WEIGHT_ROWS, place % tiles_x * TILE_W, row % tiles_y * BLOCK_ROWS, row / tiles_y};
  }
};

// The thread that keeps both rings full.
DEVICE void produce(const CUtensorMap* inp, const CUtensorMap* weight, const Shared& shared, const Work& work,
                    const Watch& watch) {
  RingPlace<HALO_STAGES> halo{1};  // all stages are empty at first
  RingPlace<WEIGHT_STAGES> weights{1};
  for (int index = blockIdx.x; index < work.tiles; index += gridDim.x) {
    const Tile tile = work.tile(index);
    for (int block = 0; block < work.channel_blocks; block++) {
      const uint32_t full = shared.halo_full(halo.stage);
      barrier_wait(shared.halo_empty(halo.stage), halo.parity, watch);
      if (watch.lost) return;
      barrier_arrive_expect(full, PLANES * HALO_BYTES);
      UNROLL
      for (int plane = 0; plane < PLANES; plane++)
        load_box(shared.halo(halo.stage) + plane * HALO_PLANE, inp, full, block * (BLOCK_BYTES / In::BYTES), tile.x - 1,
                 tile.y - 1, tile.n + plane * work.images);
      halo.advance();
      for (int unit = 0; unit < BLOCK_UNITS; unit += STAGE_UNITS) {
        barrier_wait(shared.weights_empty(weights.stage), weights.parity, watch);
        if (watch.lost) return;
        barrier_arrive_expect(shared.weights_full(weights.stage), WEIGHT_BYTES);
        load_box(shared.weights(weights.stage), weight, shared.weights_full(weights.stage), 0, tile.oc,
                 block * BLOCK_UNITS + unit);
        weights.advance();
      }
    }
  }
}

// The sums of a warpgroup, and the products of one tap and channel block: `w`, `x` describe the operands, planes lie
// `w_plane` and HALO_PLANE apart.
template <class Operands, int PLANES>
struct Sums {
  typedef Wgmma<Operands, PIXELS> Product;
  typename Product::Sum sum[PIXELS / 2];

  DEVICE void clear() {}
  DEVICE void multiply(const uint64_t (&w)[1], uint64_t x, bool first, int) {
    UNROLL
    for (int k = 0; k < BLOCK_BYTES; k += 32)
      Product::multiply(sum, w[0] + descriptor_step(k), x + descriptor_step(k), !first || k != 0);
  }
  DEVICE void wait(int) { products_wait<1>(); }
  DEVICE void finish() { pin(sum); }
};

// With PROMOTE_TAPS 2, the last tap of a block is promoted alone.
DEVICE constexpr bool promotes(int tap) { return tap % PROMOTE_TAPS == PROMOTE_TAPS - 1 || tap == 8; }

// Two planes: the small products in `low`, the large ones in `high`, which goes to `sum` every PROMOTE_TAPS taps.
template <class Operands>
struct Sums<Operands, 2> {
  typedef Wgmma<Operands, PIXELS> Product;
  float sum[PIXELS / 2], high[PIXELS / 2], low[PIXELS / 2];

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < PIXELS / 2; i++) sum[i] = 0.0f;
  }
  DEVICE void multiply(const uint64_t (&w)[2], uint64_t x, bool first, int tap) {
    UNROLL
    for (int k = 0; k < BLOCK_BYTES; k += 32) {
      const uint64_t hi = x + descriptor_step(k), lo = hi + descriptor_step(HALO_PLANE);
      Product::multiply(low, w[1] + descriptor_step(k), hi, !first || k != 0);
      Product::multiply(low, w[0] + descriptor_step(k), lo, 1);
      Product::multiply(high, w[0] + descriptor_step(k), hi, tap % PROMOTE_TAPS != 0 || k != 0);
    }
  }
  DEVICE void wait(int tap) {
    if (!promotes(tap)) return products_wait<1>();
    products_wait<0>();
    pin(high);
    UNROLL
    for (int i = 0; i < PIXELS / 2; i++) sum[i] += high[i];
  }
  DEVICE void finish() {
    pin(low);
    UNROLL
    for (int i = 0; i < PIXELS / 2; i++) sum[i] += low[i];
  }
};

// One of the two warpgroups that multiply.
struct Consumer {
  const Shared& shared;
  const Work& work;
  const Watch& watch;
  const int number, lane;
  RingPlace<HALO_STAGES> halo;
  RingPlace<WEIGHT_STAGES> weights, weights_done;  // _done: the oldest stage not given back
  int halo_done = 0;

  // Give back the weight stages that end with this tap.
  DEVICE void release_weights(int tap) {
    UNROLL
    for (int i = tap * PLANES / STAGE_UNITS; i < (tap + 1) * PLANES / STAGE_UNITS; i++) {
      if (lane == 0 && !watch.lost) barrier_arrive(shared.weights_empty(weights_done.stage));
      weights_done.advance();
    }
  }

  DEVICE void release_halo(int stage) {
    if (lane == 0 && !watch.lost) barrier_arrive(shared.halo_empty(stage));
  }

  // Wait for the tap's weights and describe them.
  DEVICE void take_weights(int tap, uint64_t (&w)[PLANES]) {
    UNROLL
    for (int plane = 0; plane < PLANES; plane++) {
      const int place = (tap * PLANES + plane) % STAGE_UNITS;
      if (place == 0) barrier_wait(shared.weights_full(weights.stage), weights.parity, watch);
      const uint32_t address = shared.weights(weights.stage) + place * UNIT_BYTES;
      w[plane] = matrix_descriptor(address + (PAIR_TILES ? 0 : number * 64 * BLOCK_BYTES), 8 * BLOCK_BYTES, SWIZZLE);
      if (place == STAGE_UNITS - 1) weights.advance();
    }
  }

  // The reduction of a tile. A tap's products run while the next tap's are issued; then its stages are given back.
  DEVICE void accumulate(Sums<In::Operands, PLANES>& sums) {
    sums.clear();
    for (int block = 0; block < work.channel_blocks; block++) {
      barrier_wait(shared.halo_full(halo.stage), halo.parity, watch);
      // Of a ring that a block's taps go around evenly the compiler would keep every address, and spill.
      asm volatile("" : "+r"(weights.stage), "+r"(weights_done.stage));
      const uint32_t pixels = shared.halo(halo.stage) + (PAIR_TILES ? number * TILE_ROWS * HALO_W * BLOCK_BYTES : 0);
      const uint64_t x = matrix_descriptor(pixels, GROUP_BYTES, SWIZZLE);
      UNROLL
      for (int tap = 0; tap < 9; tap++) {
        uint64_t w[PLANES];
        take_weights(tap, w);
        products_begin();
        sums.multiply(w, x + descriptor_step((tap / 3 * HALO_W + tap % 3) * BLOCK_BYTES), block == 0 && tap == 0, tap);
        products_commit();
        sums.wait(tap);
        if (tap > 0) {
          release_weights(tap - 1);
        } else if (block > 0) {
          release_weights(8);
          release_halo(halo_done);
        }
      }
      halo_done = halo.stage;
      halo.advance();
    }
  }

  // Wait for the last products.
  DEVICE void drain(Sums<In::Operands, PLANES>& sums) {
    products_wait<0>();
    release_weights(8);
    release_halo(halo_done);
    sums.finish();
  }
};

// Which of the pixels that record() of stage_tile sees lie in the map: a mask of both halves of a register.
struct Visible {
  int x, y;  // this thread's pixels: first column and row of the stored map, distances to its end
  DEVICE Visible(const Work& work, const Tile& tile) {
    const int q = threadIdx.x % 4;
    x = (work.width >> SEEN_POOLED) - (tile.x >> SEEN_POOLED) - (SEEN_POOLED ? q : 2 * q);
    y = (work.height >> SEEN_POOLED) - (tile.y >> SEEN_POOLED);
    if (FLAT && !POOL) x = min(y, TILE_ROWS) * FLAT_PITCH - 2 * q;  // pixels left in the line
  }
  DEVICE uint32_t mask(int column) const {
    if (FLAT) {
      const int junk = (TILE_W - 1 - column * 8 % TILE_W) - 2 * (threadIdx.x % 4);
      return half_mask(8 * column < x && junk != 0, 8 * column + 1 < x && junk != 1);
    }
    if (SEEN_POOLED) return x > 0 ? half_mask(2 * column < y, 2 * column + 1 < y) : 0;
    return column < y ? half_mask(0 < x, 1 < x) : 0;
  }
  static DEVICE uint32_t half_mask(bool low, bool high) {
    return ((low ? 0xffff : 0) | (high ? 0xffff0000 : 0)) & MAGNITUDES;
  }
};

// Finish a tile and send it off; the store reads what is staged while the next tile is multiplied.
DEVICE void store_tile(const CUtensorMap* out, const CUtensorMap* kept, const typename In::Sum (&sum)[PIXELS / 2],
                       const Finish<OUT_ELEMENT>& finish, const Consumer& consumer, const Tile& tile, int oc,
                       unsigned* maximum) {
  const Shared& shared = consumer.shared;
  const uint32_t staging = shared.staging(consumer.number), stored = POOLED_LATER ? shared.pooled() : staging;
  const bool storing = POOLED_LATER ? threadIdx.x == 128 : threadIdx.x % 128 == 0;
  const auto all_there = [&] { named_barrier(POOLED_LATER ? 3 : 1 + consumer.number, POOLED_LATER ? 256 : 128); };
  if (storing) store_wait_read<0>();
  if (!POOLED_LATER) all_there();  // the last store has read what was stored
  uint32_t largest = 0;
  const Visible visible(consumer.work, tile);
  const auto look = [&](int column, uint32_t items) {
    if (!POOLED_LATER) largest = larger_magnitudes(largest, items, visible.mask(column));
  };
  stage_maps<OUT_ELEMENT, PIXELS / 8, POOLED_FIRST>(sum, finish, staging, shared.kept(consumer.number), look);
  if constexpr (POOLED_LATER) {
    all_there();  // both tiles are staged, and the last store has read what was stored
    largest = pool_tiles<OUT_ELEMENT, TILE_ROWS, FLAT_PITCH>(shared.staging(0), Staging::BYTES, stored, visible.y);
  }
  shared_writes_to_async();
  all_there();
  if (storing) {
    UNROLL
    for (int plane = 0; plane < Out::PLANES; plane++) {
      const int image = tile.n + plane * consumer.work.images;
      store_box(out, stored + plane * Staging::PLANE_BYTES, oc, tile.x >> POOL, tile.y >> POOL, image);
      if constexpr (KEEP)
        store_box(kept, shared.kept(consumer.number) + plane * Kept::PLANE_BYTES, oc, tile.x, tile.y, image);
    }
    store_commit();
  }
  if constexpr (Out::RECORDED) record_largest(largest, maximum);
}

extern "C" __global__ void __launch_bounds__(384, 1) conv_wgmma(
    const __grid_constant__ CUtensorMap inp, const __grid_constant__ CUtensorMap weight, const __grid_constant__
    CUtensorMap out, KEPT_PARAMETER const float* bias, const float* dequant, const float* out_scale, unsigned* maxima,
    int* error, int step, int images, int channel_blocks, int oc_tiles, int tiles_x, int tiles_y, int tiles, int height,
    int width, int maxima_stride, ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  DYNAMIC_SHARED(unsigned char, raw);
  const Shared shared = {(shared_address(raw) + 1023) & ~1023u};
  const Work work = {images, channel_blocks, oc_tiles, tiles_x, tiles_y, tiles, height, width};
  const Watch watch = {error, step};
  if (threadIdx.x == 0) {
    for (int i = 0; i < HALO_STAGES; i++) {
      barrier_init(shared.halo_full(i), 1);
      barrier_init(shared.halo_empty(i), 8);  // one arrival of each warp that multiplies
    }
    for (int i = 0; i < WEIGHT_STAGES; i++) {
      barrier_init(shared.weights_full(i), 1);
      barrier_init(shared.weights_empty(i), 8);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there

  if (threadIdx.x < 128) {
    give_registers<24>();
    if (threadIdx.x == 0) {
      prefetch_map(&inp);
      prefetch_map(&weight);
      prefetch_map(&out);
      wait_for_previous_kernel();
      produce(&inp, &weight, shared, work, watch);
    }
    return;
  }
  TIMED(if (threadIdx.x == 128) barrier_wait(shared.halo_full(0), 0, watch), STAMP(OPERANDS);)
  take_registers<240>();
  Consumer consumer = {shared, work, watch, static_cast<int>(threadIdx.x / 128 - 1),
                       static_cast<int>(threadIdx.x % 32)};
  Sums<In::Operands, PLANES> sums;
  for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
    Tile tile = work.tile(index);
    const int oc = tile.oc + (PAIR_TILES ? 0 : 64 * consumer.number);
    if (PAIR_TILES && !POOLED_LATER) tile.y += TILE_ROWS * consumer.number;
    consumer.accumulate(sums);
    const Finish<OUT_ELEMENT> finish(bias + oc, dequant + oc, out_scale + oc, ACTIVATION(activation));
    consumer.drain(sums);
    TIMED(if (threadIdx.x == 128) STAMP(SUMS_READY);)
    if (index + gridDim.x >= tiles) let_next_kernel_start();
    unsigned* const maximum = maxima + static_cast<long long>(tile.n) * maxima_stride;
    store_tile(&out, KEPT, sums.sum, finish, consumer, tile, oc, maximum);
  }
  if (threadIdx.x % 128 == 0) store_wait();
  TIMED(if (threadIdx.x == 128) STAMP(DONE);)
}
