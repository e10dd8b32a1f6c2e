"""How fast a device can multiply: the Python side of ceiling.cu. Lowers no op; the benchmark launches it."""

from __future__ import annotations

from vgg16gpu.compiler.op_kernels.base import BLOCK, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Pointer

SOURCE = "ceiling.cu"
CHAINS = {"cuda": 14, "cpu": 28}  # fours of chains in a thread, by the kind of device

_FACTOR, _ADDEND = 0.999, 0.5  # every chain tends to 500: no overflow, no denormal numbers


def ffma_step(out: Pointer, blocks: int, rounds: int, kind: str) -> KernelLaunch:
    """Return a launch of `blocks` blocks of FMAs that writes 4 * BLOCK * blocks bytes to `out`. kind: of device."""
    threads, chains = BLOCK * blocks, CHAINS[kind]
    return KernelLaunch(
        kernel=Kernel(SOURCE, "ceiling_ffma", (("CHAINS", chains),)),
        grid=Dim3(blocks),
        block=Dim3(BLOCK),
        arguments=(out, *scalars(rounds), Scalar(_FACTOR, "f"), Scalar(_ADDEND, "f")),
        flop=8 * chains * rounds * threads,
        nbytes=4 * threads,
        label="ffma",
    )
