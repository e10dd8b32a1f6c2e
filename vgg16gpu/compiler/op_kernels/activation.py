"""What becomes of values at the end of a kernel, and at the beginning of a network: the Python side of common.cuh.

A kernel applies a ReLU or nothing; compiled with the macro CLIPS it applies two limits instead. Kernels that take the
run-time input in apply limits to it where they are compiled with CLIPS_INPUT.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from vgg16gpu.compiler.graph.ops import Limits
from vgg16gpu.compiler.op_kernels.base import scalars
from vgg16gpu.program.launch import Kernel, Scalar


class Activated(Protocol):
    """An op with an activation at its end, or that activation alone."""

    @property
    def relu(self) -> bool:
        """Return whether there is a ReLU."""

    @property
    def limits(self) -> Limits | None:
        """The limits in place of a ReLU."""


class Activation(NamedTuple):
    """An activation without an op."""

    relu: bool = False
    limits: Limits | None = None


NOTHING: Final = Activation()
CLIPS: Final = ("CLIPS", 1)
CLIPS_INPUT: Final = ("CLIPS_INPUT", 1)
_SLACK: Final = 2.0**-20  # of a limit: a pair of float16 keeps more


def activated(kernel: Kernel, *ops: Activated) -> Kernel:
    """Return the kernel that applies the activations of these ops."""
    return replace(kernel, defines=(*kernel.defines, CLIPS)) if _clips(ops) else kernel


def activation(*ops: Activated) -> tuple[Scalar, ...]:
    """Return the arguments of `activated`, one ACTIVATION_PARAMETER for each op."""
    if _clips(ops):
        return tuple(number for op in ops for number in _floats(_limits(op)))
    return scalars(*(int(op.relu) for op in ops))


def activation_label(op: Activated) -> str:
    """Return what is written behind an op's name in tables."""
    return " + clip" if op.limits else " + relu" * op.relu


def is_activated(op: Activated) -> bool:
    """Return whether there is an activation."""
    return op.relu or op.limits is not None


def taking(kernel: Kernel, limits: Limits | None) -> Kernel:
    """Return the kernel that applies limits to the run-time input."""
    return replace(kernel, defines=(*kernel.defines, CLIPS_INPUT)) if limits else kernel


def input_limits(limits: Limits | None) -> tuple[Scalar, ...]:
    """Return the arguments of `taking`: INPUT_PARAMETERS."""
    return _floats(limits) if limits else ()


def ends(limits: Limits, precision: str) -> Limits:
    """Return the numbers from which on a value, stored in this precision, counts as at its lower or upper limit."""
    return -_upper_end(-limits[0], precision), _upper_end(limits[1], precision)


def _upper_end(limit: float, precision: str) -> float:
    """Return the least that counts as at an upper limit, of any sign: within the slack below it, or as it is stored."""
    number = np.float32(limit)
    with np.errstate(over="ignore"):
        stored = {"fp16": float(np.float16(number)), "bf16": _bfloat16(number)}.get(precision, limit)
    return min(limit * (1 - math.copysign(_SLACK, limit)), stored)


def _bfloat16(number: np.float32) -> float:
    bits = int(number.view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


def _clips(ops: tuple[Activated, ...]) -> bool:
    return any(op.limits for op in ops)


def _limits(op: Activated) -> Limits:
    return op.limits or (0.0 if op.relu else -math.inf, math.inf)


def _floats(limits: Limits) -> tuple[Scalar, ...]:
    return tuple(Scalar(limit, "f") for limit in limits)
