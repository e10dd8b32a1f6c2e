"""Between which numbers the values of a graph lie, as far as the ops alone tell: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import (
    AxisSoftmax,
    Clip,
    Concat,
    Conv,
    Elementwise,
    FakeQuantize,
    Flatten,
    Gather,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Graph,
    Identity,
    Limits,
    Op,
    Pad,
    Pool,
    Relu,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)

ANY: Final[Limits] = (-math.inf, math.inf)
_PICKS: Final = (Concat, Flatten, Gather, GlobalPool, Identity, Pool, Reshape, Slice, Transpose)


def value_ranges(graph: Graph) -> Mapping[str, Limits]:
    """Return the smallest and the largest number that each run-time value may hold, NaN aside.

    An average is taken for as exact as its operands; the rounding of its sum may leave the range by a last bit.
    """
    found: dict[str, Limits] = {}
    for op in graph.ops:
        found[op.y] = range_of(op, found)
    return found


def range_of(op: Op, known: Mapping[str, Limits]) -> Limits:
    """Return the range of what an op gives; `known`: the ranges of values, any number where there is none."""
    if isinstance(op, FakeQuantize):
        return quantised_range(op)
    if isinstance(op, Clip) and not op.others:
        return op.range
    if isinstance(op, Softmax) or (isinstance(op, AxisSoftmax) and not op.log):
        return 0.0, 1.0
    if isinstance(op, Relu):
        return max(known.get(op.x, ANY)[0], 0.0), max(known.get(op.x, ANY)[1], 0.0)
    if isinstance(op, Conv | Gemm | GeneralConv | GeneralBatchNorm | Elementwise) and op.relu:
        return 0.0, math.inf
    if isinstance(op, Pad) or (isinstance(op, Pool) and op.kind == "average"):  # which may count zeros around the map
        low, high = known.get(op.x, ANY)
        around = op.value if isinstance(op, Pad) else 0.0
        return min(low, around), max(high, around)
    if isinstance(op, _PICKS):
        ranges = [known.get(name, ANY) for name in op.operands]
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    return ANY


def quantised_range(op: FakeQuantize) -> Limits:
    """Return the range of QuantizeLinear and DequantizeLinear: the limits of the integers, times the scale."""
    scale = np.float32(op.scale)
    low, high = (float(np.float32(limit) * scale) for limit in (op.low, op.high))
    return (max(low, 0.0), max(high, 0.0)) if op.relu else (low, high)
