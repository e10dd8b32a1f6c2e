// What compute capability 9.0 adds and CUDA C++ does not spell: barriers that count bytes, the bulk copy engine (TMA),
// descriptors and ordering of wgmma, register budgets, clusters. One short function each, named by what
// it does; the chapter of the PTX ISA (8.0 and later) stands above it. Kernels that include this run on a GPU alone.
#pragma once

#include <cuda.h>  // CUtensorMap

#include "common.cuh"
#include "early_start.cuh"
#include "half.cuh"
#include "wgmma.cuh"

#define DEVICE __device__ __forceinline__

// The address of something in shared memory, as PTX wants it: 32 bits, relative to this block's window.
DEVICE uint32_t shared_address(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// ---- mbarrier: "Parallel Synchronization and Communication Instructions: mbarrier". A barrier is 8 bytes of shared
// memory; its phase ends when all arrivals and all announced bytes have come. Waiting names the phase by its parity.

DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes the initialised barriers visible to the copy engine and to the cluster; a __syncthreads must follow.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and announce `nbytes` that the copy engine will deliver in this phase.
DEVICE void barrier_arrive_expect(uint32_t barrier, uint32_t nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(nbytes) : "memory");
}

DEVICE bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred done;\n"
      "  mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "  selp.u32 %0, 1, 0, done; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Where a wait that runs out is reported: the run's error word and what to write there, the number of the step. `lost`
// is set in the thread that it happened to.
struct Watch {
  int* error;
  int step;
  mutable bool lost = false;
};

constexpr int WAIT_TRIES = 1 << 20;  // each try sleeps in hardware for some microseconds: seconds in all

// Wait for the end of the phase of this parity. A wait that would never end gives up, sets the error word and lets the
// kernel run to its end: its results are then wrong, and the host says so. Once one wait has given up the others do not
// take their time. So the error word must be zero before a kernel starts that waits here: what follows the copy that
// brings it lets others start only once it has come. A thread that is lost must neither announce nor ask for more
// bytes: an overflowing barrier is a fault. (A __trap() here instead would make ptxas ignore the register budget of
// set_registers.)
DEVICE void barrier_wait(uint32_t barrier, uint32_t parity, const Watch& watch) {
  if (watch.lost) return;
  for (int tries = 1; !barrier_try_wait(barrier, parity); tries++) {
    if (tries == WAIT_TRIES || (tries % 1024 == 0 && *static_cast<volatile int*>(watch.error) != 0)) {
      *static_cast<volatile int*>(watch.error) = watch.step;
      watch.lost = true;
      break;
    }
  }
}

// A place in a ring of stages. Waiting for `parity` waits for the stage's current round.
template <int STAGE_COUNT>
struct RingPlace {
  uint32_t parity = 0;  // 1: the round before the first, which counts as done
  int stage = 0;

  DEVICE void advance() {
    if (++stage == STAGE_COUNT) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- The copy engine: "Data Movement and Conversion Instructions: cp.async.bulk.tensor". A tensor map, made by the
// host, knows the tensor's address, shape, strides, the box that one copy moves and how it is swizzled in shared
// memory. What lies outside of the tensor is read as zero and not written. Coordinates count elements, innermost first.
// One thread issues a copy.

DEVICE void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

DEVICE void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int c, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(target),
      "l"(map), "r"(barrier), "r"(c), "r"(row)
      : "memory");
}

DEVICE void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int c, int row, int block) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(c), "r"(row), "r"(block)
      : "memory");
}

DEVICE void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int c, int x, int y, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(c), "r"(x), "r"(y), "r"(n)
      : "memory");
}

// Bytes that lie side by side, without a map: addresses and `nbytes` are multiples of 16.
DEVICE void load_bytes(uint32_t target, const void* source, uint32_t nbytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(nbytes), "r"(barrier)
               : "memory");
}

// Stores write what lies inside the map; coordinates beyond its end are clipped, negative ones are not asked for.
DEVICE void store_box(const CUtensorMap* map, uint32_t source, int c, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(source),
               "r"(c), "r"(row)
               : "memory");
}

DEVICE void store_box(const CUtensorMap* map, uint32_t source, int c, int x, int y, int n) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(c), "r"(x), "r"(y), "r"(n)
               : "memory");
}

// Close the group of the stores that this thread issued since the last one.
DEVICE void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's groups have not yet read their shared memory.
template <int PENDING>
DEVICE void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Wait until this thread's stores are in global memory.
DEVICE void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// "Async proxy": what this thread wrote to shared memory with ordinary stores becomes visible to wgmma and the copy
// engine. A barrier among the writers must follow.
DEVICE void shared_writes_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- wgmma: "Asynchronous Warpgroup Level Matrix Instructions: Matrix Descriptor, wgmma.fence, .commit_group,
// .wait_group".

enum Swizzle : uint32_t { SWIZZLE_NONE = 0, SWIZZLE_128B = 1, SWIZZLE_64B = 2, SWIZZLE_32B = 3 };

// An operand in shared memory: rows (output channels, or pixels) of 16-byte pieces along K. With a swizzle, a row is
// 128 (64, 32) bytes, eight rows follow each other, and `stride` bytes lie between such groups of eight. The hardware
// takes the swizzle pattern from the address bits, so an operand may start at any row; base_offset stays 0. Without a
// swizzle eight rows x 16 bytes are a core matrix of 128 bytes; `leading` lies between core matrices along K, `stride`
// along the rows.
DEVICE uint64_t matrix_descriptor(uint32_t address, uint32_t stride, Swizzle swizzle, uint32_t leading = 16) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}

// Adding this to a descriptor moves its start by `nbytes`, a multiple of 16.
DEVICE constexpr uint64_t descriptor_step(int nbytes) { return static_cast<uint64_t>(nbytes >> 4); }

// Before the first product of a group: orders it behind what this thread did to the registers of the sums.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Close a group of products.
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING groups are under way: older ones have read their operands and written their sums.
template <int PENDING>
DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Stops the compiler from moving reads of the sums above the wait: it does not know that wgmma writes them later.
template <class Sum, int LENGTH>
DEVICE void pin(Sum (&sum)[LENGTH]) {
  UNROLL
  for (int i = 0; i < LENGTH; i++) {
    if constexpr (sizeof(Sum) == sizeof(float) && static_cast<Sum>(0.5f) != static_cast<Sum>(0))
      asm volatile("" : "+f"(sum[i])::"memory");
    else
      asm volatile("" : "+r"(sum[i])::"memory");
  }
}

// ---- Miscellaneous: "setmaxnreg", "bar", "barrier.cluster", "mapa", "st.async", "stmatrix".

// Registers per thread of this warpgroup from here on: the producer gives up what the consumers take.
template <int COUNT>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A barrier among `threads` threads of the block that name the same `id`, 1 to 15 (0 is __syncthreads).
DEVICE void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Orders no memory: it says that this block no longer reads what others will write, and that its barriers are there
// (barrier_init_fence). What is written goes by `send4`, and its barrier says when it is there.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address that another block of the cluster has for the same place in its shared memory.
DEVICE uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// 16 bytes into the shared memory of a block of the cluster, delivered to a barrier there.
DEVICE void send4(uint32_t address, uint32_t barrier, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(
                   address),
               "r"(barrier), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// 8x8 matrices of 16-bit values from registers to shared memory, transposed: each lane gives the address of one row of
// 16 bytes, lanes 8i..8i+7 those of matrix i.
DEVICE void store_matrices_transposed(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

DEVICE void store_matrices_transposed(uint32_t address, uint32_t m0, uint32_t m1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(m0), "r"(m1)
               : "memory");
}

// ---- "Data Movement and Conversion Instructions: createpolicy". Weights that are read once a run leave L2 first, so
// that what other kernels need stays there.

DEVICE uint64_t leaves_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 16 bytes, past L1. Asking L2 for more than these (L2::256B) costs a tenth of the memory's rate.
DEVICE uint4 load16_once(const void* source) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(leaves_first()));
  return v;
}

DEVICE void load_box_leaving_first(uint32_t target, const CUtensorMap* map, uint32_t barrier, int c, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(c), "r"(row), "l"(leaves_first())
      : "memory");
}
