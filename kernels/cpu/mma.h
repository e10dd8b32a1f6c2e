// Warp-wide matrix operations for the CPU: 32 lanes meet, each with its registers as the hardware wants them, and the
// last to come does the work of all. Sums are added in the order of k, each rounded: the same bits in every run, not
// the last bits of a tensor core, whose order and rounding are its own. Integers are exact.
#pragma once

#ifndef CPU_SHIM_LIST_KERNELS

#include "cpu/half.h"

namespace cpu {

CPU_SCHEDULER void require_warp(const char* function, uint32_t lanes) {
  if (lanes == ~0u) return;
  fail(current_block, "%s is called by the lanes %08x of a warp, it needs all 32", function, lanes);
  abandon_block(current_block);
}

// ---- ldmatrix: each lane reads the row that it names, then the rows are dealt.

struct Matrices {
  uint32_t row[4];    // 16 bytes
  uint32_t taken[4];  // of each matrix 4 bytes
};

CPU_SCHEDULER void deal_rows(void** values, uint32_t lanes) {
  require_warp("ldmatrix", lanes);
  for (int lane = 0; lane < 32; lane++)
    for (int matrix = 0; matrix < 4; matrix++)
      static_cast<Matrices*>(values[lane])->taken[matrix] =
          static_cast<Matrices*>(values[8 * matrix + lane / 4])->row[lane % 4];
}

template <int COUNT>
CPU_SCHEDULER_INLINE void load_matrices(unsigned (&m)[COUNT], const void* row) {
  static_assert(COUNT == 2 || COUNT == 4, "lanes address 16 or 32 rows");
  if (reinterpret_cast<uintptr_t>(row) % 16) {
    fail(current_block, "ldmatrix: lane %u names a row that does not lie on a multiple of 16 bytes",
         current_thread->lane);
    abandon_block(current_block);
  }
  Matrices matrices = {};
  if (static_cast<int>(current_thread->lane) < 8 * COUNT) memcpy(matrices.row, row, 16);  // the others' rows are unread
  warp_collective(~0u, &matrices, deal_rows);
  for (int i = 0; i < COUNT; i++) m[i] = matrices.taken[i];
}

// ---- mma: all products of a step at one meeting.

struct Products {
  void* sum;          // [MT][NT][4]
  const uint32_t* a;  // [MT][4]
  const uint32_t* b;  // [NT][2]
};

static inline float widen(Half v) { return f16_value(v.bits); }
static inline float widen(BFloat v) { return bf16_value(v.bits); }
static inline int widen(signed char v) { return v; }
static inline int widen(unsigned char v) { return v; }

// Element e of a register.
template <class T>
static inline T element(uint32_t word, int e) {
  T v;
  memcpy(&v, reinterpret_cast<const char*>(&word) + e * sizeof(T), sizeof v);
  return v;
}

template <class Operands_, int MT, int NT>
CPU_SCHEDULER void multiply(void** values, uint32_t lanes) {
  typedef typename Operands_::Sum Sum;
  typedef typename Operands_::Weight Weight;
  typedef typename Operands_::Value Value;
  constexpr int PER_WORD = 4 / sizeof(Weight), K = 8 * PER_WORD;
  require_warp("mma", lanes);
  Sum b[K][NT * 8];
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < NT; j++)
      for (int i = 0; i < 2; i++)
        for (int e = 0; e < PER_WORD; e++)
          b[(lane % 4 + 4 * i) * PER_WORD + e][8 * j + lane / 4] =
              widen(element<Value>(static_cast<Products*>(values[lane])->b[2 * j + i], e));
  for (int row = 0; row < 16 * MT; row++) {
    const int tile = row / 16, high = row % 16 / 8;  // sums and a's registers of rows 8 and up come second
    Products* const* quad = reinterpret_cast<Products* const*>(values + row % 8 * 4);
    Sum sum[NT * 8];
    for (int n = 0; n < NT * 8; n++)
      sum[n] = static_cast<Sum*>(quad[n % 8 / 2]->sum)[(tile * NT + n / 8) * 4 + 2 * high + n % 2];
    for (int k = 0; k < K; k++) {
      const int word = k / PER_WORD;
      const Sum a = widen(element<Weight>(quad[word % 4]->a[4 * tile + high + 2 * (word / 4)], k % PER_WORD));
      LANES
      for (int n = 0; n < NT * 8; n++) sum[n] += a * b[k][n];
    }
    for (int n = 0; n < NT * 8; n++)
      static_cast<Sum*>(quad[n % 8 / 2]->sum)[(tile * NT + n / 8) * 4 + 2 * high + n % 2] = sum[n];
  }
}

template <class Operands_, int MT, int NT>
CPU_SCHEDULER_INLINE void add_products(typename Operands_::Sum (&sum)[MT][NT][4], const unsigned (&a)[MT][4],
                                       const unsigned (&b)[NT][2]) {
  Products products = {sum, &a[0][0], &b[0][0]};
  warp_collective(~0u, &products, multiply<Operands_, MT, NT>);
}

}  // namespace cpu

#endif  // CPU_SHIM_LIST_KERNELS
