"""Ops of losses between features, which stand in the graphs that `loss.py` makes alone.

Features are maps (N, C, H, W), or Gram matrices (N, C, C). Targets are others, or of maps come from outside with their
channels last, (N, H*W, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from vgg16gpu.compiler.graph.ops import MultiOp, Op, Shape
from vgg16gpu.errors import ModelError

CHUNK: Final = 8192  # elements that one block of the kernel sums up
VALUES: Final = 16  # channels of a pixel that one of its threads holds, for unit vectors
PIXEL_ROUNDS: Final = 2  # pixels of a thread there
THREADS: Final = 256  # of a block
WARP: Final = 32
MAX_ROWS: Final = 8  # operands of a RowSum

Distance: TypeAlias = Literal["squared", "absolute", "unit"]


@dataclass(frozen=True, eq=False)
class FeatureLoss(MultiOp):
    """Partial sums (N, blocks, 1) of a loss between x and a target; with `cotangent` its gradient to x beside it.

    `distance`: the sum of squared or of absolute differences, or "unit": of squared differences of unit vectors (a
    pixel's channels divided by sqrt(1e-8 + the sum of their squares)), weighted by the third operand, (C,). All times
    `weight`.
    """

    distance: Distance = "squared"
    weight: float = 1.0
    cotangent: str | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """The partial sums, and the gradient to x."""
        return (self.y,) if self.cotangent is None else (self.y, self.cotangent)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """(N, blocks, 1), for a feature, its target and perhaps weights. Raises ModelError."""
        shape, target, *weights = shapes
        fits = weights == [(shape[1],)] and len(shape) == 4 if self.distance == "unit" else not weights
        if len(shape) not in (3, 4) or target not in (shape, target_shape(shape)) or not fits:
            raise ModelError(f"FeatureLoss '{self.y}': a target of shape {target} for a feature of shape {shape}")
        return shape[0], blocks(self, shape), 1


@dataclass(frozen=True, eq=False)
class RowSum(MultiOp):
    """(N,): the sum of all elements of a row of 1 to 8 operands."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """(N,). Raises ModelError."""
        if len(shapes) > MAX_ROWS or len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
            raise ModelError(f"RowSum '{self.y}': operands of shapes {' and '.join(map(str, shapes))}")
        return shapes[0][:1]


@dataclass(frozen=True, eq=False)
class Gram(Op):
    """(N, C, C): the products of all pairs of channels of a map (N, C, H, W), summed over pixels, over C * H * W."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """(N, C, C). Raises ModelError."""
        (shape,) = shapes
        if len(shape) != 4:
            raise ModelError(f"Gram '{self.y}': its input has shape {shape}; it needs a feature map, (N, C, H, W)")
        return shape[0], shape[1], shape[1]


@dataclass(frozen=True, eq=False)
class GramGradient(MultiOp):
    """What a Gram hands back; operands: a symmetric gradient of its result, and the map."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """That of the map. Raises ModelError."""
        gradient, shape = shapes
        if len(shape) != 4 or gradient != (shape[0], shape[1], shape[1]):
            raise ModelError(f"GramGradient '{self.y}': a gradient of shape {gradient} for the products of {shape}")
        return shape


def pixels_and_channels(shape: Shape) -> tuple[int, int]:
    """What a feature of this shape is to the kernels; a Gram matrix is one pixel."""
    return (math.prod(shape[2:]), shape[1]) if len(shape) == 4 else (1, math.prod(shape[1:]))


def lanes(channels: int) -> int:
    """How many threads of a warp share a pixel of so many channels, for unit vectors: a power of two."""
    threads = -(-channels // VALUES)
    return min(1 << max(threads - 1, 0).bit_length(), WARP)


def pixels_of_block(channels: int) -> int:
    """How many pixels of so many channels one block of the kernel sums up, for unit vectors."""
    return THREADS // lanes(channels) * PIXEL_ROUNDS


def blocks(op: FeatureLoss, shape: Shape) -> int:
    """How many partial sums there are for an image of a feature of this shape."""
    pixels, channels = pixels_and_channels(shape)
    if op.distance == "unit":
        return -(-pixels // pixels_of_block(channels))
    return -(-pixels * channels // CHUNK)


def target_shape(shape: Shape) -> Shape:
    """The shape of the target for a feature of this shape."""
    return (shape[0], math.prod(shape[2:]), shape[1]) if len(shape) == 4 else shape
