// The exchange of a split sum: several blocks of threads have each summed a share of the reduction for the same tile,
// and each gets the others' sums of its slice of the rows. All add the shares in the order of their ranks, whoever came
// first, so the bits are the same in every run.
//
// The sums are those of a warpgroup, as in wgmma.cuh: 4 a thread for each row of 8 pixels x 64 channels. The slice of
// rank r is rows r * SLICE_ROWS and on; the last may have fewer rows (those that lack are zero) or none. Partial sums
// travel as 16 bytes of bits, so int32 stays exact.
#pragma once

#include "hopper.cuh"

DEVICE float bits_as_float(float v) { return v; }
DEVICE float bits_as_float(int v) { return __int_as_float(v); }
DEVICE void take_bits(float& v, float bits) { v = bits; }
DEVICE void take_bits(int& v, float bits) { v = __float_as_int(bits); }

constexpr int ROW_SUMS_BYTES = 128 * 16;  // of a warpgroup, for one row

// Two shares, each sends SLICE_ROWS * ROW_SUMS_BYTES into the other's shared memory: there to `sent`, here to `received`,
// as addresses of either block. The barrier `arrived`, in both at the same place, expects so many bytes in its first
// phase. That wait has no bound: the other block sends whatever has become of its own waits, and this one must be there
// until then. The order of the sum is kept by itself: a + b is b + a.
template <int SLICE_ROWS, class Sum, int SUMS>
DEVICE void exchange_in_cluster(const Sum (&sum)[SUMS], Sum (&slice)[SLICE_ROWS * 4], unsigned char* received,
                                unsigned char* sent, uint32_t arrived, int rank) {
  const int thread = threadIdx.x % 128;
  const uint32_t target = address_in_block(shared_address(sent), rank ^ 1) + thread * 16;
  const uint32_t told = address_in_block(arrived, rank ^ 1);
  UNROLL
  for (int row = 0; row < SLICE_ROWS; row++) {
    float bits[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
      const int upper = row * 4 + i, lower = upper + SLICE_ROWS * 4;
      const Sum below = lower < SUMS ? sum[lower < SUMS ? lower : 0] : Sum(0);
      slice[upper] = rank == 0 ? sum[upper] : below;
      bits[i] = bits_as_float(rank == 0 ? below : sum[upper]);
    }
    send4(target + row * ROW_SUMS_BYTES, told, bits[0], bits[1], bits[2], bits[3]);
  }
  while (!barrier_try_wait(arrived, 0)) {
  }
  UNROLL
  for (int row = 0; row < SLICE_ROWS; row++) {
    float bits[4];
    unpack4(bits, load4(reinterpret_cast<const float*>(received + row * ROW_SUMS_BYTES + thread * 16)));
    UNROLL
    for (int i = 0; i < 4; i++) {
      Sum other;
      take_bits(other, bits[i]);
      slice[row * 4 + i] += other;
    }
  }
}

// Wait until `SHARES` blocks have come here; one thread of each calls. Arrivals take the counter to SHARES, departures
// on to 2 * SHARES, which is 0 again: none departs before all have arrived. Bounded as barrier_wait is; a wait that
// gave up leaves the counter dirty.
template <int SHARES>
DEVICE void meet(unsigned* counter, const Watch& watch) {
  constexpr unsigned LAST = 2 * SHARES - 1;
  atomicInc(counter, LAST);
  for (int tries = 1;; tries++) {
    unsigned arrived;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    if (arrived >= SHARES) break;
    if (tries == WAIT_TRIES || (tries % 1024 == 0 && *static_cast<volatile int*>(watch.error) != 0)) {
      *static_cast<volatile int*>(watch.error) = watch.step;
      break;
    }
  }
  atomicInc(counter, LAST);
}

// SHARES shares through L2, which hold parts[slice][share][row][thread]: SHARES * SHARES * SLICE_ROWS * ROW_SUMS_BYTES.
// A share reads its own part back as well: the order of the sum is then the same loop for all. All blocks that share a
// tile must be resident. `barrier` names a barrier of the warpgroup.
template <int SHARES, int SLICE_ROWS, class Sum, int SUMS>
DEVICE void exchange_in_workspace(const Sum (&sum)[SUMS], Sum (&slice)[SLICE_ROWS * 4], float4* parts,
                                  unsigned* counter, int rank, int barrier, const Watch& watch) {
  constexpr int PART = SLICE_ROWS * 128;
  const int thread = threadIdx.x % 128;
  UNROLL
  for (int row = 0; row < SUMS / 4; row++) {
    float4* const part = parts + (row / SLICE_ROWS * SHARES + rank) * PART + row % SLICE_ROWS * 128;
    __stcg(part + thread, make_float4(bits_as_float(sum[row * 4]), bits_as_float(sum[row * 4 + 1]),
                                      bits_as_float(sum[row * 4 + 2]), bits_as_float(sum[row * 4 + 3])));
  }
  __threadfence();
  named_barrier(barrier, 128);  // all of the warpgroup's sums are written
  if (thread == 0) meet<SHARES>(counter, watch);
  named_barrier(barrier, 128);  // thread 0 has seen all shares arrive
  UNROLL
  for (int share = 0; share < SHARES; share++) {
    UNROLL
    for (int row = 0; row < SLICE_ROWS; row++) {
      float bits[4] = {};
      if (rank * SLICE_ROWS + row < SUMS / 4)
        unpack4(bits, __ldcg(parts + (rank * SHARES + share) * PART + row * 128 + thread));
      UNROLL
      for (int i = 0; i < 4; i++) {
        Sum part;
        take_bits(part, bits[i]);
        slice[row * 4 + i] = share == 0 ? part : slice[row * 4 + i] + part;
      }
    }
  }
}
