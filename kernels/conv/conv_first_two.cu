// conv_first_two: out[n,y,x,oc] = pool2x2(finish(conv(mid, weight2))), mid[n,y,x,c] = finish(conv(pixel, weight)): the
//           first two convolutions of a network, 3x3, stride 1, pad 1, and a pool; finish: see wgmma_tile.cuh.
// Layouts:  source, mean_scale, mean_shift, in_scale, weight as in conv_first.cu, weight for 64 channels; weight2's map
//           {channels, 64, 9}, box the whole, as conv_wgmma.cu has it. bias, dequant, scale of both: 64 float. mid is
//           stored nowhere. out: map {64, W/2, H/2, N}, box {64, 4, TILE_ROWS/2, 1}; with KEEP also kept, as it is
//           before the pool: {64, W, H, N}, box {64, 8, TILE_ROWS, 1}; all swizzled 128B (bytes: 64B).
//           status (N) int; maxima[n * maxima_stride]: of mid and out, see wgmma_tile.cuh.
// Mapping:  a persistent block on each multiprocessor; each of its WARPGROUPS walks a list of tiles of TILE_ROWS rows x
//           8 pixels by itself: pixels into shared memory, mid with a ring around the tile, the tile, the store.
// Tiles:    ELEMENT (1: F16; BF16, U8, S8), SOURCE (0), IN_CHANNELS (3), TILE_ROWS (28), WARPGROUPS (2), KEEP (0).
// Shared:   SHARED_BYTES: both weights, and for each warpgroup pixels, mid and a staged tile: 195 KB (bytes: 113);
//           128 * WARPGROUPS threads.
// Cost:     2*9*64*(64 + C) FLOP per pixel, conv1 again in the ring: (TILE_ROWS+2)*10 pixels for TILE_ROWS*8. Reads the
//           source about 1.7 times, writes out: mid's traffic, the largest of the network, is gone.
// Edges:    any N, H and W from 2 on: pixels of mid outside of the map become zero, stores are clipped. A pool drops an
//           odd last row or column. status[n] |= 1 if a float source has NaN or Inf, which reach a pixel further left
//           than they should. The host zeroes status and maxima.
// Why:      conv1 alone takes as long as writing mid takes, and the tensor cores idle. Warpgroups take turns by
//           themselves: one multiplies while another one fills and finishes.
#include "first_layer.cuh"
#include "kept_maps.cuh"

#ifndef TILE_ROWS
#define TILE_ROWS 28
#endif
#ifndef WARPGROUPS
#define WARPGROUPS 2
#endif

constexpr int THREADS = 128;                        // of a warpgroup
constexpr int BLOCK_BYTES = 64 * E::BYTES;          // a pixel of mid
constexpr int MID_W = 10, MID_H = TILE_ROWS + 2;    // what the tile's taps read
constexpr int READ_W = 12, READ_H = TILE_ROWS + 4;  // what mid's taps read
constexpr int READ = READ_W * READ_H, PER_THREAD = (READ + THREADS - 1) / THREADS;

// Pixels of mid, numbered row by row, are summed in two products; those beyond its end are junk. Both are
// issued at once where two sets of sums fit into registers: of three warpgroups in F16 alone, the others would spill.
constexpr int HALF = (MID_W * MID_H + 31) / 32 * 16;
constexpr int AT_ONCE = WARPGROUPS <= 2 || ELEMENT == F16 ? 2 : 1;
typedef Wgmma<PixelsAs<E::BYTES>::Operands, HALF> FirstProduct;
typedef Wgmma<E::Operands, TILE_ROWS * 8> SecondProduct;

// Entry e of mid's row lies at e of the first plane, entry e + 2 of the same row at e of the second one: a product then
// takes pixels of mid as they are numbered.
constexpr int COPIES = E::BYTES == 2 ? 4 : 3, CELLS = ENTRY / CELL;
constexpr int ENTRY_PLANE = (2 * HALF + 2 * MID_W) * ENTRY;

typedef StagedTile<ELEMENT, TILE_ROWS, true> Staged;  // what is kept is staged where mid has been read
constexpr int round_up(int nbytes) { return (nbytes + 1023) / 1024 * 1024; }
constexpr int SECOND_WEIGHT_BYTES = 9 * 64 * BLOCK_BYTES;
constexpr int FIRST_WEIGHTS_AT = SECOND_WEIGHT_BYTES;
constexpr int GROUPS_AT = FIRST_WEIGHTS_AT + FIRST_WEIGHT_BYTES;
constexpr int STAGED_AT = round_up(2 * HALF * BLOCK_BYTES);
constexpr int ENTRIES_AT = STAGED_AT + Staged::BYTES;
constexpr int GROUP_BYTES = round_up(ENTRIES_AT + 2 * ENTRY_PLANE);
constexpr int SHARED_BYTES = 1024 + GROUPS_AT + WARPGROUPS * GROUP_BYTES;  // 1024 to align

static_assert(E::PLANES == 1, "pairs of float16 do not fit into shared memory");
static_assert(TILE_ROWS % 4 == 0 && TILE_ROWS <= 32 && HALF <= 256, "the widths of wgmma");
static_assert(HALF * BLOCK_BYTES % 1024 == 0, "the second half is swizzled like the first");
static_assert(SHARED_BYTES <= 227 * 1024, "shared memory of a block");

struct Tile {
  int x, y, n;
};

struct Work {
  int tiles_x, tiles_y, height, width;

  DEVICE Tile tile(int index) const {
    const int row = index / tiles_x;
    return {index % tiles_x * 8, row % tiles_y * TILE_ROWS, row / tiles_y};
  }

  // Whether the map goes on around a tile.
  DEVICE bool has_around(const Tile& tile) const {
    return tile.x > 0 && tile.y > 0 && tile.x + 8 < width && tile.y + TILE_ROWS < height;
  }
};

// What a warpgroup has of shared memory, and its part of the work.
struct Group {
  unsigned char* memory;
  uint32_t address;
  int number;

  DEVICE void sync() const { named_barrier(1 + number, THREADS); }
  DEVICE int thread() const { return threadIdx.x % THREADS; }
};

// This thread's share of the pixels that a tile needs.
struct Patch {
  Pixels::Raw raw[PER_THREAD];

  DEVICE void fetch(const char* source, const Work& work, const Tile& tile, int thread) {
    const char* image = source + static_cast<size_t>(tile.n) * C * work.height * work.width * Pixels::Source::BYTES;
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = thread + i * THREADS, y = tile.y - 2 + pixel / READ_W, x = tile.x - 2 + pixel % READ_W;
      const bool inside = pixel < READ && y >= 0 && y < work.height && x >= 0 && x < work.width;
      Pixels::fetch(raw[i], image, y, x, work.height, work.width, inside);
    }
  }

  // Every pixel goes into all entries that hold it.
  DEVICE void put(Pixels& pixels, unsigned char* entries, int thread) const {
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = thread + i * THREADS, row = pixel / READ_W, column = pixel % READ_W;
      uint32_t cell[PARTS][CELL / 4];
      pixels.convert(raw[i], cell);
      UNROLL
      for (int k = 0; k < COPIES; k++) {
        const int e = column - k;
        if (pixel < READ && e >= 0 && e < MID_W)
          store_cell(entries + k / CELLS * ENTRY_PLANE + (row * MID_W + e) * ENTRY + k % CELLS * CELL, cell[0]);
      }
    }
  }
};

// mid around the tile, finished, in shared memory.
DEVICE void first_convolution(const Group& group, uint32_t weights, const Finish<ELEMENT>& finish, bool inner,
                              uint32_t& largest) {
  FirstProduct::Sum sum[AT_ONCE][HALF / 2];
  const auto multiply = [&](int half) {
    products_begin();
    UNROLL
    for (int kh = 0; kh < 3; kh++) {
      const uint32_t b = group.address + ENTRIES_AT + (half * HALF + kh * MID_W) * ENTRY;
      FirstProduct::multiply(sum[half % AT_ONCE],
                             matrix_descriptor(weights + kh * 2 * PIECE, 8 * ENTRY, SWIZZLE_NONE, PIECE),
                             matrix_descriptor(b, 8 * ENTRY, SWIZZLE_NONE, ENTRY_PLANE), kh > 0);
    }
    products_commit();
  };
  UNROLL
  for (int half = 0; half < AT_ONCE; half++) multiply(half);
  UNROLL
  for (int half = 0; half < 2; half++) {
    if (half < AT_ONCE - 1)
      products_wait<1>();
    else
      products_wait<0>();
    pin(sum[half % AT_ONCE]);
    if (KEEP && half == 0) {
      if (group.thread() == 0) store_wait_read<0>();
      group.sync();  // the last store has read what was kept
    }
    const int left = MID_W * MID_H - half * HALF - threadIdx.x % 4 * 2;  // pixels before the junk
    stage_tile<ELEMENT, HALF / 8, false>(sum[half % AT_ONCE], finish, group.address + half * HALF * BLOCK_BYTES,
                                         [&](int column, uint32_t items) {
                                           if (inner && 8 * column < left) largest = larger_magnitudes(largest, items);
                                         });
    if (half + AT_ONCE < 2) multiply(half + AT_ONCE);
  }
}

// Pixels of mid outside of the map become zero, the padding of the second convolution; the others are looked at here.
DEVICE void clear_padding(const Group& group, const Work& work, const Tile& tile, uint32_t& largest) {
  constexpr int PARTS_OF_PIXEL = BLOCK_BYTES / 16;
  group.sync();  // mid is written
  for (int pixel = group.thread(); pixel < MID_W * MID_H; pixel += THREADS) {
    const int y = tile.y - 1 + pixel / MID_W, x = tile.x - 1 + pixel % MID_W;
    const bool inside = y >= 0 && y < work.height && x >= 0 && x < work.width;
    uint4* const values = reinterpret_cast<uint4*>(group.memory + pixel * BLOCK_BYTES);
    UNROLL
    for (int i = 0; i < PARTS_OF_PIXEL; i++) {
      // Each thread begins with another part: in step they would all meet in the same banks.
      uint4& value = values[(i + pixel * BLOCK_BYTES / 128) % PARTS_OF_PIXEL];
      if (!inside) {
        value = make_uint4(0, 0, 0, 0);
      } else if constexpr (E::RECORDED) {
        largest = larger_magnitudes(largest, uint4(value));
      }
    }
  }
}

// Start the products of the tile.
DEVICE void second_convolution(SecondProduct::Sum (&sum)[TILE_ROWS * 4], const Group& group, uint32_t weights) {
  products_begin();
  UNROLL
  for (int tap = 0; tap < 9; tap++) {
    const uint64_t w = matrix_descriptor(weights + tap * 64 * BLOCK_BYTES, 8 * BLOCK_BYTES, E::SWIZZLE);
    const uint64_t x = matrix_descriptor(group.address, MID_W * BLOCK_BYTES, E::SWIZZLE) +
                       descriptor_step((tap / 3 * MID_W + tap % 3) * BLOCK_BYTES);
    UNROLL
    for (int k = 0; k < BLOCK_BYTES; k += 32)
      SecondProduct::multiply(sum, w + descriptor_step(k), x + descriptor_step(k), tap > 0 || k > 0);
  }
  products_commit();
}

// Which halves of a register that stage_tile stores lie in the map that is kept, or in the pooled one.
DEVICE uint32_t visible(const Work& work, const Tile& tile, int column) {
  if (KEEP) return tile.y + column < work.height ? halves_before(work.width - tile.x, threadIdx.x % 4 * 2) : 0;
  const int x = work.width / 2 - tile.x / 2 - threadIdx.x % 4, y = work.height / 2 - tile.y / 2;
  return x > 0 ? halves_before(y, 2 * column) : 0;
}

DEVICE void store_tile(const CUtensorMap* out, const CUtensorMap* kept, const SecondProduct::Sum (&sum)[TILE_ROWS * 4],
                       const Finish<ELEMENT>& finish, const Group& group, const Work& work, const Tile& tile,
                       uint32_t& largest) {
  const uint32_t staged = group.address + STAGED_AT;
  if (group.thread() == 0) store_wait_read<0>();
  group.sync();  // the last store has read the staged tile, and the products have read mid
  const auto look = [&](int column, uint32_t items) {
    largest = larger_magnitudes(largest, items, visible(work, tile, column));
  };
  stage_maps<ELEMENT, TILE_ROWS, true>(sum, finish, staged, group.address, look);
  shared_writes_to_async();
  group.sync();  // all of the tile is staged
  if (group.thread() == 0) {
    store_box(out, staged, 0, tile.x / 2, tile.y / 2, tile.n);
    if constexpr (KEEP) store_box(kept, group.address, 0, tile.x, tile.y, tile.n);
    store_commit();
  }
}

extern "C" __global__ void __launch_bounds__(WARPGROUPS* THREADS, 1) conv_first_two(
    const __grid_constant__ CUtensorMap weight2, const __grid_constant__ CUtensorMap out, KEPT_PARAMETER
    const void* __restrict__ source, const void* __restrict__ weight, const float* __restrict__ weight_scale,
    const float* __restrict__ bias, const float* __restrict__ dequant, const float* __restrict__ scale,
    const float* __restrict__ in_scale, const float* __restrict__ mean_scale, const float* __restrict__ mean_shift,
    const float* __restrict__ bias2, const float* __restrict__ dequant2, const float* __restrict__ scale2,
    unsigned* maxima, int maxima_stride, int* status, int* error, int step, int H, int W, int tiles_x, int tiles_y,
    int tiles, ACTIVATION_PARAMETER(activation),
    ACTIVATION_PARAMETER(activation2) INPUT_PARAMETERS TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  DYNAMIC_SHARED(unsigned char, unaligned);
  __shared__ uint64_t barrier;
  unsigned char* const shared = unaligned + (-shared_address(unaligned) & 1023);
  const uint32_t address = shared_address(shared), full = shared_address(&barrier);
  const int number = threadIdx.x / THREADS;
  const Group group = {shared + GROUPS_AT + number * GROUP_BYTES, address + GROUPS_AT + number * GROUP_BYTES, number};
  const Work work = {tiles_x, tiles_y, H, W};
  const Watch watch{error, step};

  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init_fence();
    prefetch_map(&out);
    barrier_arrive_expect(full, SECOND_WEIGHT_BYTES);
    load_box(address, &weight2, full, 0, 0, 0);
  }
  if (threadIdx.x < THREADS) load_weights(shared + FIRST_WEIGHTS_AT, weight, weight_scale, 0);
  // Entries behind the last pixel are never written, and a zero weight does not undo a NaN.
  for (int i = group.thread(); i < 2 * ENTRY_PLANE / 16; i += THREADS)
    reinterpret_cast<uint4*>(group.memory + ENTRIES_AT)[i] = make_uint4(0, 0, 0, 0);
  const Finish<ELEMENT> finish(bias, dequant, scale, ACTIVATION(activation)),
      finish2(bias2, dequant2, scale2, ACTIVATION(activation2));
  Pixels pixels(in_scale, mean_scale, mean_shift, INPUT_LIMITS);
  shared_writes_to_async();
  __syncthreads();  // the weights of the first convolution and the barrier are there
  wait_for_previous_kernel();

  const char* const images = static_cast<const char*>(source);
  const int stride = gridDim.x * WARPGROUPS, thread = group.thread();
  int index = blockIdx.x + number * gridDim.x;
  Patch patch;
  const auto take_in = [&](int index) {
    pixels.largest = 0;
    patch.put(pixels, group.memory + ENTRIES_AT, thread);
    if (SOURCE == SOURCE_F32 && __any_sync(0xffffffff, pixels.met_nonfinite()) && threadIdx.x % 32 == 0)
      atomicOr(status + work.tile(index).n, 1);
  };
  if (index < tiles) {
    patch.fetch(images, work, work.tile(index), thread);
    take_in(index);
    if (index + stride < tiles) patch.fetch(images, work, work.tile(index + stride), thread);
    shared_writes_to_async();
    group.sync();  // the pixels are there
  }
  barrier_wait(full, 0, watch);  // the weights of the second one
  TIMED(if (threadIdx.x == 0) STAMP(OPERANDS);)
  for (; index < tiles; index += stride) {
    const Tile tile = work.tile(index);
    uint32_t largest = 0;
    const bool inner = work.has_around(tile);
    first_convolution(group, address + FIRST_WEIGHTS_AT, finish, inner, largest);
    if (!inner) clear_padding(group, work, tile, largest);
    shared_writes_to_async();
    group.sync();  // mid is there, and the pixels have been read
    SecondProduct::Sum sum[TILE_ROWS * 4];
    second_convolution(sum, group, address);
    if (index + stride < tiles) {
      take_in(index + stride);
      if (index + 2 * stride < tiles) patch.fetch(images, work, work.tile(index + 2 * stride), thread);
    } else {
      let_next_kernel_start();  // the first warpgroup that ends speaks for the block; the next kernel waits for all
    }
    products_wait<0>();
    pin(sum);
    TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
    store_tile(&out, KEPT, sum, finish2, group, work, tile, largest);
    if constexpr (E::RECORDED) record_largest(largest, maxima + static_cast<size_t>(tile.n) * maxima_stride);
  }
  if (group.thread() == 0) store_wait();
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
