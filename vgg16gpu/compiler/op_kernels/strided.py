"""Values as the general kernels see them: any rank, any strides. What a `StridedIndexer` is made of.

An output in the NHWC layout has padding channels, which must become zero: the kernels walk over all that is stored
(extents) and write zeros beyond what is real (limits). Dimensions are walked in the order in which the output lies in
memory, so that neighbouring threads write neighbouring floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.program.launch import StridedIndexer
from vgg16gpu.program.types import Layout, Pointer, TensorDesc


@dataclass(frozen=True)
class View:
    """float32 elements of a tensor: that at index i lies `sum(i * strides)` floats behind `pointer`."""

    pointer: Pointer
    shape: Shape
    strides: tuple[int, ...]

    def permuted(self, order: Sequence[int]) -> View:
        """Return a view whose dimension i is dimension order[i] of this one."""
        return replace(
            self, shape=tuple(self.shape[dim] for dim in order), strides=tuple(self.strides[dim] for dim in order)
        )

    def broadcast(self, shape: Shape) -> View:
        """Return the same elements, repeated to `shape` by numpy's rules."""
        missing = len(shape) - len(self.shape)
        strides = [0 if dim == 1 else stride for dim, stride in zip(self.shape, self.strides, strict=True)]
        return replace(self, shape=shape, strides=(0,) * missing + tuple(strides))


def view(value: TensorDesc) -> View:
    """View all real elements of a value, in the order of its ONNX dimensions."""
    if value.layout is Layout.PLAIN:
        return View(value.pointer, value.shape, plain_strides(value.shape))
    batch, *_ = plain_strides(value.stored_shape)
    if len(value.shape) == 2:
        return View(value.pointer, value.shape, (batch, 1))
    _, _, height, width = value.shape
    return View(value.pointer, (*value.shape[:2], height, width), (batch, 1, width * value.pitch, value.pitch))


def plain_strides(shape: Shape) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, in elements."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@dataclass(frozen=True)
class IterationSpace:
    """What a kernel writes of an output: dimensions in the order in which they lie in memory, padding included."""

    order: tuple[int, ...]  # ONNX dimension of each
    extents: tuple[int, ...]  # stored
    limits: tuple[int, ...]  # real; what is beyond becomes zero
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements to write."""
        return math.prod(self.extents)

    def walk(self, *strides: Sequence[int], rank: int = StridedIndexer.RANK) -> StridedIndexer:
        """Return rows: extents, limits, strides of the output, and `strides` of operands by ONNX dimension.

        Missing dimensions come first, with extent and limit 1.
        """
        missing = rank - len(self.order)
        ones, zeros = (1,) * missing, (0,) * missing
        operands = [zeros + tuple(row[dim] for dim in self.order) for row in strides]
        return StridedIndexer((ones + self.extents, ones + self.limits, zeros + self.strides, *operands))


def room(value: TensorDesc) -> IterationSpace:
    """Return the space of all elements that a value's producer must write, padding included."""
    rank = len(value.shape)
    if value.layout is Layout.PLAIN:
        return IterationSpace(tuple(range(rank)), value.shape, value.shape, plain_strides(value.shape))
    order = (0, *range(2, rank), 1)
    limits = tuple(value.shape[dim] for dim in order)
    return IterationSpace(order, (*limits[:-1], value.pitch), limits, plain_strides(value.stored_shape))
