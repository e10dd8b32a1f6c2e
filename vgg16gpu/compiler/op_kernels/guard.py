"""Launches that do nothing unless an image of their batch needs them: the Python side of the macro GUARDED."""

from __future__ import annotations

from dataclasses import replace

from vgg16gpu.compiler.op_kernels.base import scalars
from vgg16gpu.program.launch import GUARDED, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer


def guarded(step: KernelLaunch, guard: Pointer, batch: int = 0) -> KernelLaunch:
    """Add a guard to a step of kernels that know the macro (`kernels/include/common.cuh`).

    guard: a word that is set if any image needs the step, then one for each image. batch: the number of these words; 0
    if one image's need holds for all.
    """
    return replace(
        step,
        kernel=guarded_kernel(step.kernel),
        arguments=(*step.arguments, guard, *scalars(batch)),
        programmatic=False,  # who returns at once has waited for nobody
        guard=guard,
    )


def guarded_kernel(kernel: Kernel) -> Kernel:
    """Return the guarded variant of a kernel."""
    return replace(kernel, defines=(*kernel.defines, GUARDED))
