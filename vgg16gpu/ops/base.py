"""What every op module in this folder offers the planner, and the few helpers that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Op, Shape
from vgg16gpu.memory import aligned
from vgg16gpu.program import Arena, Dim3, Pointer, Scalar, Step, Upload, Value, padded_channels

BLOCK = 256  # threads of the simple kernels, as in their sources


class WeightArena:
    """Collects the uploads that fill the weight arena, in order; hands out the place of each array."""

    def __init__(self) -> None:
        self.uploads: list[Upload] = []
        self.nbytes = 0
        self.staging_nbytes = 0

    def reserve(self, nbytes: int) -> Pointer:
        """Room for `nbytes` in the arena."""
        pointer = Pointer(Arena.WEIGHTS, self.nbytes)
        self.nbytes += aligned(nbytes)
        return pointer

    def add(self, array: npt.NDArray[np.generic]) -> Pointer:
        """An array that is stored as it is."""
        pointer = self.reserve(array.nbytes)
        self.uploads.append(Upload(array, pointer))
        return pointer

    def add_channels(self, vector: npt.NDArray[np.float32] | None, channels: int) -> Pointer:
        """A value per channel (zeros for None), padded with zeros like the channels of an NHWC value."""
        stored = np.zeros(padded_channels(channels), np.float32)
        if vector is not None:
            stored[:channels] = vector
        return self.add(stored)

    def add_packed(self, array: npt.NDArray[np.generic], pack: Step) -> None:
        """An array that goes to the start of the staging arena, from where the step `pack` takes it."""
        self.staging_nbytes = max(self.staging_nbytes, aligned(array.nbytes))
        self.uploads.append(Upload(array, Pointer(Arena.STAGING, 0), pack))


@dataclass(frozen=True)
class Lowering:
    """How the planner turns ops of one type into steps.

    weights(op, x_shape, arena) -> pointers: puts the constants of the op into the weight arena.
    steps(op, x, y, weights, workspace, facts) -> steps: the launches that compute y from x.
    workspace_nbytes(op, x_shape, facts) -> bytes of scratch memory that these steps use.
    """

    op_type: type[Op]
    steps: Callable[[Any, Value, Value, Sequence[Pointer], Pointer, DeviceFacts], tuple[Step, ...]]
    weights: Callable[[Any, Shape, WeightArena], tuple[Pointer, ...]] = lambda *_: ()
    workspace_nbytes: Callable[[Any, Shape, DeviceFacts], int] = lambda *_: 0


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def scalars(*values: int) -> tuple[Scalar, ...]:
    """Integer kernel arguments."""
    return tuple(Scalar(value) for value in values)


def linear(threads: int) -> tuple[Dim3, Dim3]:
    """Grid and block of a kernel with one thread per item."""
    return Dim3(ceil_div(threads, BLOCK)), Dim3(BLOCK)
