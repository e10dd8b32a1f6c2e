// Slots of shared memory that all threads of a block fill by asynchronous copies and all its warps read, again and
// again. Two barriers for each: a warp waits for what it is about to read or to overwrite, never for the slowest warp.
// PTX ISA 7.0, "mbarrier", "cp.async.mbarrier.arrive". Turing and the CPU, whose copies wait, have barriers of the block.
#pragma once

#include "common.cuh"

// turn: how many times a slot was filled before; only its lowest bit is looked at.
template <int SLOTS, int THREADS>
struct Slots {
#if HAS_COPY_ASYNC
  unsigned filled, read;  // addresses of SLOTS barriers each

  // barriers: 16 * SLOTS bytes of shared memory, a multiple of 8. All threads call it; another barrier of the block comes before any wait.
  __device__ __forceinline__ explicit Slots(void* barriers) {
    filled = static_cast<unsigned>(__cvta_generic_to_shared(barriers));
    read = filled + 8 * SLOTS;
    if (threadIdx.x > 0) return;
    UNROLL
    for (int s = 0; s < SLOTS; s++) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(filled + 8 * s), "n"(THREADS) : "memory");
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(read + 8 * s), "n"(THREADS) : "memory");
    }
  }

  // The slot is filled once the copies that this thread has started have landed, and those of all others.
  __device__ __forceinline__ void note_fill(int slot) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(filled + 8 * slot) : "memory");
  }

  // The warp has read what the slot holds. Each lane says so: one for its warp takes as long, and racecheck does not
  // follow it.
  __device__ __forceinline__ void note_read(int slot) const {
    __syncwarp();  // not needed for that, but without it conv_mma_3x3 spills registers on 8.0
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(read + 8 * slot) : "memory");
  }

  __device__ __forceinline__ void wait_until_filled(int slot, int turn) const { wait(filled + 8 * slot, turn); }

  // Until all threads have read what the slot held in that turn; before the first, turn -1, at once.
  __device__ __forceinline__ void wait_until_read(int slot, int turn) const { wait(read + 8 * slot, turn); }

 private:
  static __device__ __forceinline__ void wait(unsigned barrier, int turn) {
    asm volatile(
        "{ .reg .pred done;\n"
        "AGAIN:\n"
        "  mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
        "  @!done bra AGAIN; }" ::"r"(barrier),
        "r"(turn & 1)
        : "memory");
  }
#else
  __device__ __forceinline__ explicit Slots(void*) {}
  __device__ __forceinline__ void note_fill(int) const {}
  __device__ __forceinline__ void note_read(int) const {}
  __device__ __forceinline__ void wait_until_filled(int, int) const { __syncthreads(); }
  __device__ __forceinline__ void wait_until_read(int, int) const { __syncthreads(); }
#endif
};
