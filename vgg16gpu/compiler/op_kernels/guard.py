"""Launches that do nothing unless an image of their batch needs them: the Python side of the macro GUARDED."""

from __future__ import annotations

from dataclasses import replace

from vgg16gpu.compiler.op_kernels.base import scalars
from vgg16gpu.program.launch import GUARDED, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer


def guarded(step: KernelLaunch, guard: Pointer, batch: int = 0) -> KernelLaunch:
    """A step of kernels that know the macro (`kernels/include/common.cuh`).

    guard: a word that is set if any image needs it, then one for each. batch: how many these are; 0 if all images need
    what one of them needs.
    """
    return replace(
        step,
        kernel=guarded_kernel(step.kernel),
        arguments=(*step.arguments, guard, *scalars(batch)),
        programmatic=False,  # who returns at once has waited for nobody
        guard=guard,
    )


def guarded_kernel(kernel: Kernel) -> Kernel:
    """What `guarded` launches in its place."""
    return replace(kernel, defines=(*kernel.defines, GUARDED))
