// When a block has begun, has its first operands, its sums, the sums of others and is done, in a build that tells
// (macro TIMELINE, `testbench.timeline`); in any other these macros are nothing.
//
// timeline: 16 words for each block. Of event e words 2e and 2e + 1: nanoseconds of the whole device, which may go in
// coarse steps, and a clock of the block's multiprocessor; 0 of what did not happen. Word 10: that multiprocessor.
#pragma once

#include "common.cuh"

#ifdef TIMELINE

#ifndef __CUDACC__
#include <sched.h>
#include <time.h>
#endif

enum : int { BEGUN, OPERANDS, SUMS_READY, EXCHANGED, DONE, WHERE };

__device__ __forceinline__ void stamp(unsigned long long* timeline, int event) {
  const unsigned long long row = blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z;
  const unsigned long long block = blockIdx.x + gridDim.x * row;
  unsigned long long* const words = timeline + 16 * block;
#ifdef __CUDACC__
  unsigned long long now, clock;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
  if (event == BEGUN) {
    unsigned where;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(where));
    words[2 * WHERE] = where;
  }
#else
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const unsigned long long now = 1000000000ull * time.tv_sec + time.tv_nsec, clock = now;
  if (event == BEGUN) words[2 * WHERE] = sched_getcpu();
#endif
  words[2 * event] = now;
  words[2 * event + 1] = clock;
}

#define TIMELINE_PARAMETER , unsigned long long *__restrict__ timeline
#define TIMELINE_ARGUMENT , timeline
#define TIMED(...) __VA_ARGS__
#define STAMP(event) stamp(timeline, event)

#else

#define TIMELINE_PARAMETER
#define TIMELINE_ARGUMENT
#define TIMED(...)
#define STAMP(event)

#endif
