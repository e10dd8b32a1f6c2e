// float32 from pairs of float16 on mma.sync: value * scale = high + low, both of them halves. A product of two pairs is
// low * high + high * low + high * high; low * low, 2^-22 of it, is dropped.
//
// Tensor cores cut what they add at the size of the sum, always towards zero: 2.1e-8 of it on average with each product
// of 16. So small products come first, into a part that begins at zero, large ones behind them, and the part is added
// to the sum by an instruction that rounds. docs/performance.md has the errors.
#pragma once

#include "mma.cuh"

constexpr int PAIR_CHANNELS = 16;                // of a pair's group, which one product takes
constexpr int PAIR_NBYTES = 2 * PRODUCT_NBYTES;  // of a group: 16 high halves, then their 16 low ones

// copy16_async by the lanes that are `active`, without a branch.
__device__ __forceinline__ void copy16_async_where(bool active, void* shared_target, const void* global_source,
                                                   bool valid) {
#if HAS_COPY_ASYNC
  asm volatile(
      "{ .reg .pred ignore, active;\n"
      "  setp.eq.s32 ignore, %2, 0;\n"
      "  setp.ne.s32 active, %3, 0;\n"
      "  @active cp.async.cg.shared.global [%0], [%1], 16, ignore; }" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared_target))),
      "l"(__cvta_generic_to_global(global_source)), "r"(static_cast<int>(valid)), "r"(static_cast<int>(active))
      : "memory");
#else
  if (active) copy16_async(shared_target, global_source, valid);
#endif
}

template <int MT, int NT>
__device__ __forceinline__ void set_zero(float (&sum)[MT][NT][4]) {
  UNROLL
  for (int i = 0; i < MT; i++) {
    UNROLL
    for (int j = 0; j < NT; j++) {
      UNROLL
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;
    }
  }
}

template <int MT, int NT>
__device__ __forceinline__ void add_part(float (&sum)[MT][NT][4], const float (&part)[MT][NT][4]) {
  UNROLL
  for (int i = 0; i < MT; i++) {
    UNROLL
    for (int j = 0; j < NT; j++) {
      UNROLL
      for (int e = 0; e < 4; e++) sum[i][j][e] += part[i][j][e];
    }
  }
}

// What a warp has of the product of conv_mma_3x3: ROWS rows of MT * 16 channels x 8 columns. Bytes in shared memory:
// KH_NBYTES from the weights of one kh to the next, ROW_NBYTES from one row of pixels to the next; of both, rows of
// PAIR_NBYTES. A part is what three rows of pixels and one group of channels give a row of outputs.
template <int ROWS, int MT, int KH_NBYTES, int ROW_NBYTES>
struct PairProduct {
  float sum[ROWS][MT][1][4];

  struct Pixels {
    unsigned high[1][2], low[1][2];

    __device__ __forceinline__ void load(const char* first) {
      unsigned both[4];
      load_matrices(both, first);
      UNROLL
      for (int e = 0; e < 2; e++) {
        high[0][e] = both[e];
        low[0][e] = both[2 + e];
      }
    }
  };

  unsigned high[3][MT][4], low[3][MT][4];  // weights
  Pixels row[3];                           // above, of and below the row of outputs

  __device__ __forceinline__ PairProduct() {
    UNROLL
    for (int r = 0; r < ROWS; r++) set_zero(sum[r]);
  }

  // Where a slot's first fragments lie: weights of the warp, and the lane's pixel of the row above the tile.
  struct Place {
    const char* a;
    const char* b;

    __device__ __forceinline__ Place(const char* weights, const char* halo, int place) {
      const int lane = threadIdx.x % 32;
      a = weights + tile_offset<PAIR_NBYTES>(lane % 16, lane / 16);
      b = halo + tile_offset<PAIR_NBYTES>(place, lane / 8);
    }

    // The low halves of the weights. Rows begin at multiples of PAIR_NBYTES in shared memory.
    __device__ __forceinline__ const char* low() const {
      return reinterpret_cast<const char*>(reinterpret_cast<size_t>(a) ^ PRODUCT_NBYTES);
    }
  };

  static __device__ __forceinline__ void load_weights(unsigned (&of_kh)[MT][4], const char* first, int kh) {
    UNROLL
    for (int i = 0; i < MT; i++) load_matrices(of_kh[i], first + kh * KH_NBYTES + i * 16 * PAIR_NBYTES);
  }

  __device__ __forceinline__ void start(const Place& first) {
    UNROLL
    for (int kh = 0; kh < 3; kh++) {
      load_weights(low[kh], first.low(), kh);
      load_weights(high[kh], first.a, kh);
    }
    row[0].load(first.b);
    row[1].load(first.b + ROW_NBYTES);
  }

  // Add the products of one kw and group of channels, whose weights and first two rows are there. `between` is called
  // before each row, and before the last has made `next` readable: weights are read again as soon as the last product
  // with them is under way.
  template <class Between>
  __device__ __forceinline__ void add(const Place& at, const Place& next, const Between& between) {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const bool is_last = r + 1 == ROWS;
      between(r);
      row[2].load(at.b + (r + 2) * ROW_NBYTES);
      float part[MT][1][4] = {};
      UNROLL
      for (int kh = 0; kh < 3; kh++) {
        add_products<Fp16, MT, 1>(part, low[kh], row[kh].high);
        if (is_last) load_weights(low[kh], next.low(), kh);
      }
      UNROLL
      for (int kh = 0; kh < 3; kh++) add_products<Fp16, MT, 1>(part, high[kh], row[kh].low);
      UNROLL
      for (int kh = 0; kh < 3; kh++) {
        add_products<Fp16, MT, 1>(part, high[kh], row[kh].high);
        if (is_last) load_weights(high[kh], next.a, kh);
      }
      add_part(sum[r], part);
      row[0] = row[1];
      row[1] = row[2];
    }
    row[0].load(next.b);
    row[1].load(next.b + ROW_NBYTES);
  }
};

// What a warp has of the product of a block whose tiles lie in shared memory in rows of ROW_NBYTES, groups of pairs one
// behind the other: MT * 16 rows of weights x NT * 8 rows of activations. A part is what a group gives; 16 parts are
// added to each other before they come to the sum, so that no chain of additions is long.
template <int MT, int NT, int ROW_NBYTES>
struct PairWarpProduct {
  static constexpr int PARTS_TOGETHER = 16;
  float sum[MT][NT][4], recent[MT][NT][4];
  int parts = 0;  // in `recent`

  __device__ __forceinline__ PairWarpProduct() {
    set_zero(sum);
    set_zero(recent);
  }

  // Add the products of a stage: ROW_NBYTES of k, in order.
  __device__ __forceinline__ void add(const char* weights, const char* values) {
    const int lane = threadIdx.x % 32;
    const int first_a = tile_offset<ROW_NBYTES>(lane % 16, lane / 16);
    const int first_b = tile_offset<ROW_NBYTES>(lane % 8, lane / 8);
    UNROLL
    for (int at = 0; at < ROW_NBYTES; at += PAIR_NBYTES) {
      unsigned a_high[MT][4], a_low[MT][4], b_high[NT][2], b_low[NT][2];
      UNROLL
      for (int i = 0; i < MT; i++) {
        load_matrices(a_low[i], weights + (first_a ^ (at + PRODUCT_NBYTES)) + i * 16 * ROW_NBYTES);
        load_matrices(a_high[i], weights + (first_a ^ at) + i * 16 * ROW_NBYTES);
      }
      UNROLL
      for (int j = 0; j < NT; j++) {
        unsigned both[4];
        load_matrices(both, values + (first_b ^ at) + j * 8 * ROW_NBYTES);
        UNROLL
        for (int e = 0; e < 2; e++) {
          b_high[j][e] = both[e];
          b_low[j][e] = both[2 + e];
        }
      }
      float part[MT][NT][4] = {};
      add_products<Fp16, MT, NT>(part, a_low, b_high);
      add_products<Fp16, MT, NT>(part, a_high, b_low);
      add_products<Fp16, MT, NT>(part, a_high, b_high);
      add_to_sums(part);
    }
  }

  __device__ __forceinline__ void add_to_sums(const float (&part)[MT][NT][4]) {
    add_part(recent, part);
    if (++parts == PARTS_TOGETHER) finish();
  }

  // The sums are whole behind this.
  __device__ __forceinline__ void finish() {
    add_part(sum, recent);
    set_zero(recent);
    parts = 0;
  }
};

// What one thread fetches of ROWS rows of packed pairs (groups,2,rows,16), high before low, rows a multiple of 64: 16
// bytes of each of LOADS rows. MT: as in RowFetcher.
template <int ROWS, int ROW_NBYTES, int THREADS, int MT>
struct PairFetcher {
  static constexpr int PIECES = ROW_NBYTES / 16, ROWS_PER_LOAD = THREADS / PIECES, LOADS = ROWS / ROWS_PER_LOAD;
  static constexpr int GROUPS = ROW_NBYTES / PAIR_NBYTES;
  static_assert(64 % ROWS == 0, "packed rows end at a multiple of 64");
  static_assert(ROWS % ROWS_PER_LOAD == 0, "rows are fetched in whole rounds");
  const char* source;
  long long group_nbytes;

  // As of a RowFetcher, for all of k.
  __device__ __forceinline__ PairFetcher(const void* packed, int first_row, int rows, int, int, int) {
    const int stored = (rows + 63) / 64 * 64, group = threadIdx.x % PIECES / 4;
    group_nbytes = stored * PAIR_NBYTES;
    source = static_cast<const char*>(packed) + group * group_nbytes + threadIdx.x / 2 % 2 * (group_nbytes / 2) +
             (first_row + channel_of_row<MT>(threadIdx.x / PIECES)) * PRODUCT_NBYTES + threadIdx.x % 2 * 16;
  }

  __device__ __forceinline__ void fetch(char* tile) {
    char* target = tile + tile_offset<ROW_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    UNROLL
    for (int l = 0; l < LOADS; l++)
      copy16_async(target + l * ROWS_PER_LOAD * ROW_NBYTES,
                   source + channel_of_row<MT>(l * ROWS_PER_LOAD) * PRODUCT_NBYTES, true);
    source += GROUPS * group_nbytes;
  }
};
