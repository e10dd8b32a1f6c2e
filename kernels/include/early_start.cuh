// Programmatic dependent launch: a kernel may start before the one before it has ended, from Hopper on. Elsewhere, the
// CPU too, these say nothing. PTX ISA 8.0, "Parallel Synchronization and Communication Instructions: griddepcontrol".
#pragma once

#include "common.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_EARLY_STARTS 1
#else
#define HAS_EARLY_STARTS 0
#endif

// Wait for the kernel before this one: everything it wrote can be read. At once where the launch is an ordinary one.
// Loads that must stay behind it are spelled out, or of memory that is not __restrict__: the compiler moves read-only
// ones above it.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if HAS_EARLY_STARTS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start now, up to its own wait.
__device__ __forceinline__ void let_next_kernel_start() {
#if HAS_EARLY_STARTS
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
