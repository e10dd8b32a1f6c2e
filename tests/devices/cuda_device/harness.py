"""What tests of the GPU device share: a kernel, out = a * inp + b, and chains of its launches."""

from __future__ import annotations

import numpy as np

from vgg16gpu.program.launch import Dim3, KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Pointer

SOURCE = """
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 128
#endif

// out[i] = a * inp[i] + b
extern "C" __global__ void axpb_f32(float* out, const float* inp, float a, int b, int count) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) out[i] = fmaf(a, inp[i], (float)b);
}

// The same through dynamic shared memory, `skip` floats into it.
extern "C" __global__ void axpb_shared_f32(float* out, const float* inp, float a, int b, int count, int skip) {
  DYNAMIC_SHARED(float, buffer);
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) buffer[skip + threadIdx.x] = inp[i];
  __syncthreads();
  if (i < count) out[i] = fmaf(a, buffer[skip + threadIdx.x], (float)b);
}

// The same, also where it may start before the kernel before it has ended.
extern "C" __global__ void axpb_early_f32(float* out, const float* inp, float a, int b, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) out[i] = fmaf(a, inp[i], (float)b);
}

extern "C" __global__ void fault_f32(float* out) { out[threadIdx.x] = 1.0f; }
"""
COUNT = 1000
BLOCK = 128
MEBIBYTE = 2**20
NEAR_BASELINE = 4 * MEBIBYTE  # the driver allocates in units of 2 MiB


def axpb(kernel, out, inp, a=2.0, b=1):
    """The step out = a * inp + b, between offsets of the activation arena."""
    arguments = (
        Pointer(Arena.ACTIVATIONS, out),
        Pointer(Arena.ACTIVATIONS, inp),
        Scalar(a, "f"),
        Scalar(b),
        Scalar(COUNT),
    )
    return KernelLaunch(kernel, Dim3(-(-COUNT // BLOCK)), Dim3(BLOCK), arguments, label="axpb")


def chain(kernel, length):
    """x -> 2x + 1 `length` times, between two places."""
    return [axpb(kernel, (index + 1) % 2 * 4096, index % 2 * 4096) for index in range(length)]


def run_chain(device, launch, address, x, length):
    """What a bound chain makes of x, which lies at the start of its arena."""
    device.copy_in(address, x)
    launch()
    result = np.full_like(x, np.nan)
    device.copy_out(result, address + length % 2 * 4096)
    device.synchronize()
    return result


def chained(x, length):
    for _ in range(length):
        x = 2 * x + 1
    return x


def numbers():
    return np.arange(COUNT, dtype=np.float32) % 37
