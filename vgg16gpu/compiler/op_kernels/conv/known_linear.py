"""Convolutions of pairs whose images have factors, as gradients have: their scales follow from the weights alone.

Each image of x is brought to below 2^15 by a power of two. No sum is larger than that times the magnitudes of a row of
weights, so that 2^-`growth` brings every result to below 2^15, too, whatever lies in x.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.op_kernels.base import OpContext, Rescaling, WeightPacker
from vgg16gpu.compiler.op_kernels.conv.common import TAPS, is_same_3x3
from vgg16gpu.compiler.op_kernels.layout.rescale import EXPONENT
from vgg16gpu.compiler.op_kernels.wgmma import RawWeights, has_wgmma, pack_known_pairs, whole_tiles
from vgg16gpu.program.types import DType, Pointer

_EXPONENT: Final = 15  # weights are brought to below 2^15
_MOST: Final = 60  # of exponents, so that products of scales are finite


def computes(layer: OpContext[Conv]) -> bool:
    """Return whether a layer multiplies such pairs."""
    return layer.rescaled and layer.precision == "fp32"


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether Hopper's tensor cores compute such a layer."""
    return has_wgmma(layer.facts) and is_known(layer)


def is_known(layer: OpContext[Conv]) -> bool:
    """Return whether it is 3x3 of the same size, with weights that have room in products of scales.

    Of few outputs, an image's say, a tile computes more, which are not stored.
    """
    is_usual = layer.precision == "fp32" and is_same_3x3(layer.op)
    return is_usual and _largest(layer.op.weight) < 2.0**_MOST


def growth(weight: Array) -> int:
    """Return the least exponent with no result above 2^growth times the largest magnitude of x."""
    largest = _largest(weight)
    return _bounded(math.ceil(math.log2(largest))) if largest and math.isfinite(largest) else 0


def _largest(weight: Array) -> float:
    """Return the largest sum of a row's magnitudes; NaN if any is NaN."""
    sums = [float(np.abs(row).sum(dtype=np.float64)) for row in weight]  # row by row: they may be large
    return math.nan if any(map(math.isnan, sums)) else max(sums)


def rescaling(weight: Array, element: DType, bounds: tuple[Pointer, ...]) -> Rescaling:
    """Return how what a convolution with these weights reads is rescaled. bounds: of what that is the sum of.

    Results of pairs are divided by what they may have grown by. float16 has no scales for its outputs: x is brought to
    where no sum can leave the range, and results keep its factor.
    """
    larger = growth(weight)
    return (
        Rescaling(bounds, EXPONENT, larger) if element.planes > 1 else Rescaling(bounds, EXPONENT - max(larger, 0), 0)
    )


def weights(op: Conv, correction: float, block: int, arena: WeightPacker) -> tuple[Pointer, Pointer, Pointer, Pointer]:
    """Pack weights; return them, a zero bias, the inverse row scales, and the scale of results.

    correction: what makes up for sums that come out too small. block: channels of a row of shared memory.
    """
    outputs, channels = op.weight.shape[:2]
    tile = whole_tiles(DType.F16_PAIR.padded(outputs))
    scale = np.ones(tile, np.float32)
    scale[:outputs] = [_row_scale(row) for row in op.weight]
    row_scale = arena.add(scale)
    stored = DType.F16_PAIR.padded(channels)
    unscaled = arena.add(np.ones(stored, np.float32))
    raw = RawWeights(outputs, channels, TAPS, (channels * TAPS, TAPS, 1), stored)
    packed = pack_known_pairs(op.weight, raw, block, (row_scale, unscaled), arena)
    dequant = np.float32(correction) / scale
    return (
        packed,
        arena.add(np.zeros(tile, np.float32)),
        arena.add(dequant),
        arena.add(np.full(tile, 2.0 ** -growth(op.weight), np.float32)),
    )


def _row_scale(row: Array) -> float:
    largest = float(np.abs(row).max())
    return 2.0 ** (_EXPONENT - _bounded(math.frexp(largest)[1])) if largest else 1.0


def _bounded(exponent: int) -> int:
    return min(max(exponent, -_MOST), _MOST)
