"""Copies by a kernel: the Python side of kernels/layout/transfer.cu. Devices launch it, and the benchmark."""

from __future__ import annotations

from typing import Final

from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Pointer

SOURCE = "transfer.cu"
THREADS: Final = 256
MEMORY_GROUPS: Final = 8  # 16-byte loads that a thread has under way, for the rate of device memory
BUS_GROUPS: Final = 2  # and where the host is at one end: more threads, sooner done
VARIANTS: Final = tuple((("GROUPS", groups),) for groups in (MEMORY_GROUPS, BUS_GROUPS))


def transfer_kernel(groups: int) -> Kernel:
    """Return the kernel with `groups` loads under way."""
    return Kernel(SOURCE, "transfer", (("GROUPS", groups),))


def transfer_step(out: Pointer, inp: Pointer, nbytes: int, groups: int = MEMORY_GROUPS) -> KernelLaunch:
    """Return a copy of `nbytes`, a multiple of 4, from `inp` to `out`, both at multiples of 16."""
    return KernelLaunch(
        kernel=transfer_kernel(groups),
        grid=Dim3(max(1, -(-nbytes // (16 * THREADS * groups)))),
        block=Dim3(THREADS),
        arguments=(out, inp, Scalar(nbytes // 4)),
        nbytes=2 * nbytes,
        label="copy",
    )
