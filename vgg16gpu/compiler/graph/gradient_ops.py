"""The ops of gradients, and weights as the gradients of convolutions and matrices take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from weakref import ref

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Limits, MultiOp, Op, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.errors import ModelError


@dataclass(frozen=True, eq=False)
class MaskedGradient(MultiOp):
    """0 where x, maps that a ReLU has given, is 0; else the sum of 1 to 4 gradients, the further operands.

    pools: the first of them is that of a 2x2 max pool of x, whose windows hand it to their first maximum, row by row.
    range: x comes out of a Clip to this range, and is at one of its ends instead.
    """

    pools: bool = False
    range: Limits | None = None

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x. Raises ModelError for gradients of other shapes."""
        shape, *gradients = shapes
        batch, channels, height, width = self.map_shape(shape)
        pooled = (batch, channels, *self.window_shape(MAX_POOL_2X2, height, width)) if self.pools else shape
        if gradients != [pooled, *(shape for _ in gradients[1:])]:
            raise ModelError(f"MaskedGradient '{self.y}': gradients of shapes {gradients} for maps of {shape}")
        return shape


@dataclass(frozen=True, eq=False)
class PoolGradient(MultiOp):
    """What a pool hands back to its input; operands: the gradient of its result, and that input.

    A maximum hands it to the first element that has it, row by row; an average an equal share to each that it counted.
    """

    kind: Literal["max", "average"] = "max"
    window: Window = MAX_POOL_2X2
    count_include_pad: bool = False

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of the pool's input. Raises ModelError if the gradient has not that of its result."""
        gradient, shape = shapes
        batch, channels, height, width = self.map_shape(shape)
        if gradient != (batch, channels, *self.window_shape(self.window, height, width)):
            raise ModelError(f"PoolGradient '{self.y}': a gradient of shape {gradient} for a pool of {shape}")
        return shape


@dataclass(frozen=True, eq=False)
class PowerOfTwo(Op):
    """For each image the power of two that brings its largest magnitude to 2^(exponent-1) or more, below 2^exponent."""

    exponent: int = 0

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, 1) for a matrix, (N, 1, 1, 1) for maps. Raises ModelError for other ranks."""
        (shape,) = shapes
        if len(shape) not in (2, 4):
            raise ModelError(f"PowerOfTwo '{self.y}': its input has shape {shape}; it needs maps, or a row an image")
        return shape[0], *(1,) * (len(shape) - 1)


_Made: TypeAlias = tuple["ref[Array]", "ref[Array]"]  # of what, and what; both live as long as somebody else has them
_MADE: Final[dict[int, _Made]] = {}  # by the identity of what they are made of


def dgrad_conv_weight(weight: Array) -> Array:
    """Rotate (K, C, R, S) by 180 degrees into (C, K, R, S); read-only, one array for the lifetime of `weight`."""
    return _once(weight, lambda: weight[:, :, ::-1, ::-1].swapaxes(0, 1))


def dgrad_matrix_weight(weight: Array) -> Array:
    """Transpose (N, K); read-only, one array for the lifetime of `weight`."""
    return _once(weight, lambda: weight.T)


def _once(weight: Array, make: Callable[[], Array]) -> Array:
    key = id(weight)
    source, made = _MADE.get(key, (None, None))
    if source and made and source() is weight and (found := made()) is not None:
        return found
    found = np.array(make(), order="C")
    found.setflags(write=False)
    _MADE[key] = ref(weight), ref(found, lambda gone: _forget(key, gone))
    return found


def _forget(key: int, gone: ref[Array]) -> None:
    if key in _MADE and _MADE[key][1] is gone:
        del _MADE[key]
