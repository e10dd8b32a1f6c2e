"""Read models that round: ranges of values, scales for int8, clips for other precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph, value_ranks
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


_HELD: Final[Mapping[bool, Limits]] = {False: (0.0, 255.0), True: (-128.0, 127.0)}  # by whether they are signed
_KEEPS_SIGN: Final = (Concat, Flatten, Gather, GlobalPool, Identity, Pool, Reshape, Slice, Transpose)


def strip_qdq(graph: Graph) -> Graph:
    """Return the model without rounding: each FakeQuantize is a Clip, or nothing where its limits change nothing.

    Weights stay as the integers make them.
    """
    if not any(isinstance(op, FakeQuantize) for op in graph.ops):
        return graph
    ranges: dict[str, Limits] = {}
    clipped: dict[tuple[str, Limits], str] = {}  # the first clip of a value to these limits
    ops: list[Op] = []
    for op in graph.ops:
        made = _saturated(op, ranges, clipped) if isinstance(op, FakeQuantize) else op
        ranges[made.y] = range_of(made, ranges)
        ops.append(made)
    return replace(graph, ops=tuple(ops))


def _saturated(op: FakeQuantize, ranges: Mapping[str, Limits], clipped: dict[tuple[str, Limits], str]) -> Op:
    """Return what a FakeQuantize does beside rounding: nothing to a value in its range, else it clips."""
    low, high = quantised_range(op)
    least, most = ranges.get(op.x, ANY)
    if low <= least and most <= high:
        return Identity(op.x, op.y, op.names)
    same = clipped.setdefault((op.x, (low, high)), op.y)
    if same != op.y:
        return Identity(same, op.y, op.names)
    # What has no sign is told so by a ReLU: calibration gives it unsigned integers.
    return Clip(op.x, op.y, op.names, low=low, high=high, relu=low == 0)


def absorb_qdq(graph: Graph) -> Graph:
    """Move rounding that int8 kernels do not need into `Graph.integers`. Run it before `simplify`.

    Where others than Conv and Gemm read its value, or the one before it, the op stays, and gives the real numbers of
    the integers; else readers of the value saturate it. Where no Conv and no Gemm reads integers that the kernels can
    hold it is `strip_qdq`: then calibrated scales fit it.
    """
    if not any(isinstance(op, FakeQuantize) for op in graph.ops):
        return graph
    unrounded, shared, floats = _Unrounded(graph), _shared(graph), _floats(graph)
    integers: dict[str, tuple[float, bool]] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, FakeQuantize) and (stored := _integers(op)):
            integers[op.y] = stored
            op = op if op.x in shared or op.y in floats else unrounded.op(op)  # noqa: PLW2901
        elif _carries(op) and op.x in integers:
            integers[op.y] = integers[op.x]
        ops.append(op)
    for op in reversed(ops):
        if _carries(op) and op.y in integers and op.x not in shared:
            integers.setdefault(op.x, integers[op.y])
    is_read = any(isinstance(op, Conv | Gemm) and op.x in integers for op in ops)
    return replace(graph, ops=tuple(ops), integers=integers) if is_read else strip_qdq(graph)


def _floats(graph: Graph) -> set[str]:
    """Return the values that are needed as float32: graph outputs, and operands of ops other than Conv and Gemm.

    An op that integers pass through (Flatten, MaxPool) needs its operand as float32 where its result is needed so.
    """
    found = set(graph.outputs)
    for op in reversed(graph.ops):
        if not isinstance(op, Conv | Gemm | FakeQuantize) and (op.y in found or not _carries(op)):
            found.update(op.operands)
    return found


def _shared(graph: Graph) -> set[str]:
    """Return values needed in two ways: by one reader as they are, by another rounded, or rounded otherwise."""
    wanted: dict[str, set[object]] = {name: {None} for name in graph.outputs}
    for op in graph.ops:
        rounding = (op.scale, op.low, op.high) if isinstance(op, FakeQuantize) else op.y
        for name in op.operands:
            wanted.setdefault(name, set()).add(rounding)
    return {name for name, ways in wanted.items() if len(ways) > 1}


class _Unrounded:
    """Ops that leave to who reads their integers what a FakeQuantize does, but for a ReLU, and ends within a byte."""

    def __init__(self, graph: Graph) -> None:
        self._ranks = value_ranks(graph)
        self._positive: set[str] = set()  # values without negative elements
        for op in graph.ops:
            if _rectifies(op) or (isinstance(op, _KEEPS_SIGN) and self._positive.issuperset(op.operands)):
                self._positive.add(op.y)

    def op(self, op: FakeQuantize) -> Op:
        """Return the replacement of a FakeQuantize whose integers a byte can hold: Identity, Relu or Clip."""
        least, most = _HELD[_is_signed(op)]
        low, high = quantised_range(op)  # what saturates by itself needs no Clip
        if (_is_signed(op) and op.low <= least) or (op.low <= 0 and op.x in self._positive):
            low = -math.inf
        if op.high >= most:
            high = math.inf
        if (low, high) == ANY:
            return Identity(op.x, op.y, op.names)
        if (low, high) == (0, math.inf) and self._ranks[op.x] in (2, 4):
            return Relu(op.x, op.y, op.names)
        return Clip(op.x, op.y, op.names, low=low, high=high)


def _rectifies(op: Op) -> bool:
    """Return whether nothing negative comes out of an op, whatever goes in."""
    if isinstance(op, Clip | FakeQuantize):
        return op.relu or op.low >= 0
    if isinstance(op, Elementwise | GeneralBatchNorm):
        return op.relu
    return isinstance(op, Relu | Softmax) or (isinstance(op, AxisSoftmax) and not op.log)


def _integers(op: FakeQuantize) -> tuple[float, bool] | None:
    """Return the scale of an op's integers, and whether they are signed; None if the kernels cannot hold them."""
    least, most = _HELD[_is_signed(op)]
    is_held = least <= op.low <= op.high <= most
    return (op.scale, _is_signed(op)) if is_held and not op.relu else None


def _is_signed(op: FakeQuantize) -> bool:
    return op.low < 0


def _carries(op: Op) -> bool:
    """Return whether integers pass through it unchanged."""
    return isinstance(op, Flatten | Identity | Transpose) or (isinstance(op, Pool) and op.kind == "max")
