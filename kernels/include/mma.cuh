// Tensor cores through mma.sync: every card from compute capability 7.5 on, and the CPU, where a warp's threads meet
// and one of them does the arithmetic. A product is 16 rows of `a` (weights) x 8 rows of `b` (activations) x 32 bytes
// of the reduction k, added to float or int sums. Both operands lie in shared memory with k innermost, in rows of
// ROW_NBYTES.
//
// Fragments: PTX ISA, "Warp-level matrix instructions: mma.m16n8k16, .m16n8k32". Lane = 4 * g + t: its sums 0, 1 are
// row g of a and rows 2t, 2t + 1 of b, its sums 2, 3 the same of row g + 8.
#pragma once

#include "mma_epilogue.cuh"

// What the operands hold: weights first, then activations; the type of the sums.
struct Half {
  unsigned short bits;
};
struct BFloat {
  unsigned short bits;
};
template <class Weight_, class Value_, class Sum_>
struct Operands {
  typedef Weight_ Weight;
  typedef Value_ Value;
  typedef Sum_ Sum;
};
typedef Operands<Half, Half, float> Fp16;
typedef Operands<BFloat, BFloat, float> Bf16;
typedef Operands<signed char, unsigned char, int> S8U8;  // exact
typedef Operands<signed char, signed char, int> S8S8;    // exact

// The operands of activations that are stored as ELEMENT_.
template <int ELEMENT_>
struct OperandsOf;
template <>
struct OperandsOf<F16> {
  typedef Fp16 Type;
};
template <>
struct OperandsOf<F16_PAIR> {
  typedef Fp16 Type;  // of each half
};
template <>
struct OperandsOf<BF16> {
  typedef Bf16 Type;
};
template <>
struct OperandsOf<U8> {
  typedef S8U8 Type;
};
template <>
struct OperandsOf<S8> {
  typedef S8S8 Type;
};

constexpr int PRODUCT_NBYTES = 32;  // of the reduction that one product takes

#ifdef __CUDACC__

// COUNT (2 or 4) matrices of 8 rows x 16 bytes: lane 8i + r names row r of matrix i, and gets of each matrix the four
// bytes at 4t of row g. PTX ISA, "Warp-level matrix instructions: ldmatrix".
template <int COUNT>
__device__ __forceinline__ void load_matrices(unsigned (&m)[COUNT], const void* row) {
  static_assert(COUNT == 2 || COUNT == 4, "lanes address 16 or 32 rows");
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (COUNT == 4)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(m[0]), "=r"(m[1])
                 : "r"(address)
                 : "memory");
}

// One instruction from Ampere on; Turing takes a product in pieces, and has no bfloat16.
#define MMA_WHOLE(SHAPE, KIND)                                                                              \
  asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : KIND(sum[0]), KIND(sum[1]), KIND(sum[2]), KIND(sum[3])                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_HALF(SHAPE, i)                                                                      \
  asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                         \
               : "r"(a[2 * (i)]), "r"(a[2 * (i) + 1]), "r"(b[i]))
#define MMA_QUARTER(SHAPE, i, j)                                            \
  asm volatile("mma.sync.aligned." SHAPE " {%0, %1}, {%2}, {%3}, {%0, %1};" \
               : "+r"(sum[2 * (j)]), "+r"(sum[2 * (j) + 1])                 \
               : "r"(a[2 * (i) + (j)]), "r"(b[i]))
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MMA_FP16 MMA_WHOLE("m16n8k16.row.col.f32.f16.f16.f32", "+f")
#define MMA_BF16 MMA_WHOLE("m16n8k16.row.col.f32.bf16.bf16.f32", "+f")
#define MMA_BYTES(TYPES) MMA_WHOLE("m16n8k32.row.col.s32." TYPES ".s32", "+r")
#else
#define MMA_FP16                                  \
  MMA_HALF("m16n8k8.row.col.f32.f16.f16.f32", 0); \
  MMA_HALF("m16n8k8.row.col.f32.f16.f16.f32", 1)
#define MMA_BF16 __trap()  // the planner chooses no bfloat16 there
#define MMA_BYTES(TYPES)                                  \
  MMA_QUARTER("m8n8k16.row.col.s32." TYPES ".s32", 0, 0); \
  MMA_QUARTER("m8n8k16.row.col.s32." TYPES ".s32", 0, 1); \
  MMA_QUARTER("m8n8k16.row.col.s32." TYPES ".s32", 1, 0); \
  MMA_QUARTER("m8n8k16.row.col.s32." TYPES ".s32", 1, 1)
#endif

__device__ __forceinline__ void add_product(Fp16, float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MMA_FP16;
}
__device__ __forceinline__ void add_product(Bf16, float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MMA_BF16;
}
__device__ __forceinline__ void add_product(S8U8, int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MMA_BYTES("s8.u8");
}
__device__ __forceinline__ void add_product(S8S8, int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MMA_BYTES("s8.s8");
}

// sum[i][j] += a[i] * b[j]
template <class Operands_, int MT, int NT>
__device__ __forceinline__ void add_products(typename Operands_::Sum (&sum)[MT][NT][4], const unsigned (&a)[MT][4],
                                             const unsigned (&b)[NT][2]) {
  UNROLL
  for (int i = 0; i < MT; i++) {
    UNROLL
    for (int j = 0; j < NT; j++) add_product(Operands_(), sum[i][serpentine(i, j, NT)], a[i], b[serpentine(i, j, NT)]);
  }
}

#else

#include "cpu/mma.h"

template <int COUNT>
static inline void load_matrices(unsigned (&m)[COUNT], const void* row) {
  cpu::load_matrices(m, row);
}

template <class Operands_, int MT, int NT>
static inline void add_products(typename Operands_::Sum (&sum)[MT][NT][4], const unsigned (&a)[MT][4],
                                const unsigned (&b)[NT][2]) {
  cpu::add_products<Operands_>(sum, a, b);
}

#endif

// ---- Tiles in shared memory: rows of ROW_NBYTES (64 or 128) of k, in pieces of 16 bytes. The pieces of a row are
// exchanged so that the same piece of eight neighbouring rows, which a matrix is read from, lies in all 32 banks.

template <int ROW_NBYTES>
__device__ __forceinline__ int tile_offset(int row, int piece) {
  static_assert(ROW_NBYTES == 64 || ROW_NBYTES == 128, "eight rows lie in four or eight lines of 128 bytes");
  return row * ROW_NBYTES + (piece ^ (ROW_NBYTES == 128 ? row % 8 : row / 2 % 4)) * 16;
}

// The output channels of a warp's MT * 16 rows of weights are dealt so that the sums of a thread are 2 * MT
// neighbouring channels, which it stores at once: row 16i + 8h + g is channel 2 * MT * g + 2i + h. Adds up over
// disjoint bits.
template <int MT>
__device__ __forceinline__ constexpr int channel_of_row(int row) {
  constexpr int ROWS = 16 * MT;
  return row / ROWS * ROWS + row % 8 * 2 * MT + row % ROWS / 16 * 2 + row % 16 / 8;
}

// What a warp has of its block's product: MT * 16 rows of weights x NT * 8 rows of activations.
template <class Operands_, int MT, int NT, int ROW_NBYTES>
struct WarpProduct {
  typedef typename Operands_::Sum Sum;
  static constexpr int STEPS = ROW_NBYTES / PRODUCT_NBYTES;
  Sum sum[MT][NT][4];

  __device__ __forceinline__ WarpProduct() {
    UNROLL
    for (int i = 0; i < MT; i++) {
      UNROLL
      for (int j = 0; j < NT; j++) {
        UNROLL
        for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
      }
    }
  }

  // What the products of one step read.
  struct Fragments {
    unsigned a[MT][4], b[NT][2];

    // From the warp's first row of each tile, a multiple of 8.
    __device__ __forceinline__ void load(const char* weights, const char* values, int step) {
      const int lane = threadIdx.x % 32;
      const int first_a = tile_offset<ROW_NBYTES>(lane % 16, lane / 16) ^ step * PRODUCT_NBYTES;
      UNROLL
      for (int i = 0; i < MT; i++) load_matrices(a[i], weights + first_a + i * 16 * ROW_NBYTES);
      const int row_b = NT == 1 ? lane % 8 : lane / 16 * 8 + lane % 8;
      const int first_b = tile_offset<ROW_NBYTES>(row_b, lane / 8 % 2) ^ step * PRODUCT_NBYTES;
      if constexpr (NT == 1) {
        load_matrices(b[0], values + first_b);
      } else {
        UNROLL
        for (int j = 0; j < NT; j += 2) {
          unsigned pair[4];
          load_matrices(pair, values + first_b + j * 8 * ROW_NBYTES);
          UNROLL
          for (int e = 0; e < 4; e++) b[j + e / 2][e % 2] = pair[e];
        }
      }
    }
  };

  // Add the products of a stage: ROW_NBYTES of k, in order.
  __device__ __forceinline__ void add(const char* weights, const char* values) {
    static_assert(NT == 1 || NT % 2 == 0, "rows of activations are read 16 at a time");
    Fragments fragments[2];  // the next step's are on their way while this one's are multiplied
    fragments[0].load(weights, values, 0);
    UNROLL
    for (int step = 0; step < STEPS; step++) {
      if (step + 1 < STEPS) fragments[(step + 1) % 2].load(weights, values, step + 1);
      add_products<Operands_>(sum, fragments[step % 2].a, fragments[step % 2].b);
    }
  }

  __device__ __forceinline__ void finish() {}  // the sums are whole
};

// Brings ROWS rows of a matrix in memory, `pitch` bytes apart, to a tile in shared memory, ROW_NBYTES of k a call. MT >
// 0: the rows are weights and go where channel_of_row<MT> wants them. Rows from `rows` and k from `k_nbytes` on are
// zero.
template <int ROWS, int ROW_NBYTES, int THREADS, int MT>
struct RowFetcher {
  static constexpr int PIECES = ROW_NBYTES / 16;
  static constexpr int ROWS_PER_LOAD = THREADS / PIECES;  // that all threads together fetch at once
  static constexpr int LOADS = (ROWS + ROWS_PER_LOAD - 1) / ROWS_PER_LOAD;
  static_assert(THREADS % PIECES == 0 && ROWS_PER_LOAD % 8 == 0,
                "the pieces of all loads of a thread are exchanged alike");
  static_assert((ROWS_PER_LOAD & (ROWS_PER_LOAD - 1)) == 0, "channel_of_row adds up");

  const char* source;
  long long pitch;
  int rows, row;  // `row`: of the thread's first piece
  int k, k_nbytes;

  static __device__ __forceinline__ constexpr int memory_row(int tile_row) {
    if constexpr (MT > 0)
      return channel_of_row<MT>(tile_row);
    else
      return tile_row;
  }

  __device__ __forceinline__ RowFetcher(const void* matrix, int first_row, int all_rows, int k0, int k_end,
                                        long long row_pitch) {
    k = k0 + threadIdx.x % PIECES * 16;
    k_nbytes = k_end;
    pitch = row_pitch;
    row = first_row + memory_row(threadIdx.x / PIECES);
    rows = all_rows;
    source = static_cast<const char*>(matrix) + row * row_pitch + k;
  }

  __device__ __forceinline__ void fetch(char* tile) {
    char* target = tile + tile_offset<ROW_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    UNROLL
    for (int l = 0; l < LOADS; l++) {
      if (ROWS % ROWS_PER_LOAD != 0 && threadIdx.x / PIECES + l * ROWS_PER_LOAD >= ROWS) break;
      const int further = memory_row(l * ROWS_PER_LOAD);
      copy16_async(target + l * ROWS_PER_LOAD * ROW_NBYTES, source + further * pitch,
                   k < k_nbytes && row + further < rows);
    }
    source += ROW_NBYTES;
    k += ROW_NBYTES;
  }
};

// The main loop: `tiles` stages of k. fetcher.fetch(stage) starts filling WEIGHT_NBYTES of weights, then the
// activations; add_stage(stage) multiplies. One barrier a stage.
template <int DEPTH, int STAGE_SIZE, class Fetcher, class AddStage>
__device__ __forceinline__ void for_each_stage(char* shared, int tiles, Fetcher& fetcher, AddStage add_stage) {
  static_assert(DEPTH >= 2, "one stage is filled while another is read");
  UNROLL
  for (int ahead = 0; ahead < DEPTH - 1; ahead++) {
    if (ahead < tiles) fetcher.fetch(shared + ahead * STAGE_SIZE);
    copy_async_commit();
  }
  int stage = 0;
  for (int tile = 0; tile < tiles; tile++) {
    copy_async_wait<DEPTH - 2>();
    __syncthreads();  // the stage has landed for everybody, and nobody reads the one that is filled next
    const int next = stage == 0 ? DEPTH - 1 : stage - 1;
    if (tile + DEPTH - 1 < tiles) fetcher.fetch(shared + next * STAGE_SIZE);
    copy_async_commit();
    add_stage(shared + stage * STAGE_SIZE);
    stage = stage == DEPTH - 1 ? 0 : stage + 1;
  }
}
