"""What a device can do at most: the Python side of kernels/ceiling.cu. Lowers no op; the benchmark launches it."""

from __future__ import annotations

from vgg16gpu.ops.base import BLOCK, ceil_div, scalars
from vgg16gpu.program import Dim3, Kernel, Pointer, Scalar, Step

SOURCE = "ceiling.cu"
GROUPS = 8  # 16-byte loads that a thread has under way
CHAINS = 14  # vectors of 4 chains in a thread

_FACTOR, _ADDEND = 0.999, 0.5  # every chain tends to 500: no overflow, no denormal numbers


def copy_step(out: Pointer, inp: Pointer, nbytes: int) -> Step:
    """Copies `nbytes`, a multiple of 16, from `inp` to `out`."""
    vectors = nbytes // 16
    return Step(
        kernel=Kernel(SOURCE, "ceiling_copy", (("GROUPS", GROUPS),)),
        grid=Dim3(ceil_div(vectors, BLOCK * GROUPS)),
        block=Dim3(BLOCK),
        arguments=(out, inp, *scalars(vectors)),
        nbytes=2 * nbytes,
        label="copy",
    )


def ffma_step(out: Pointer, blocks: int, rounds: int) -> Step:
    """`blocks` blocks of arithmetic in registers; writes 4 * BLOCK * blocks bytes to `out`."""
    threads = BLOCK * blocks
    return Step(
        kernel=Kernel(SOURCE, "ceiling_ffma", (("CHAINS", CHAINS),)),
        grid=Dim3(blocks),
        block=Dim3(BLOCK),
        arguments=(out, *scalars(rounds), Scalar(_FACTOR, "f"), Scalar(_ADDEND, "f")),
        flop=8 * CHAINS * rounds * threads,
        nbytes=4 * threads,
        label="ffma",
    )
