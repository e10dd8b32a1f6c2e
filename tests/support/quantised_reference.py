"""The judge of int8: every op of a quantised graph in numpy, with the very bits that the kernels must give.

Integer products are summed by float64 matrix products: every partial sum is an integer below 2**53, so they are exact
in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support import reference
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv, Flatten, Gemm, Identity, Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, Scales, quantise, stored_scales

Stored: TypeAlias = npt.NDArray[Any]  # uint8, int8 or float32


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A run: what every op stores, and the sums of each Conv (before pooling) and Gemm, by the name of its y."""

    stored: dict[str, Stored]
    sums: dict[str, npt.NDArray[np.int32]]


def evaluate(graph: Graph, scales: Scales, x: npt.NDArray[np.float32]) -> Evaluation:
    """Run a quantised graph on (N, C, H, W) or (N, F) float32."""
    ops, first = quantise(graph, scales), stored_scales(graph, scales)[graph.input.name]
    run = Evaluation({graph.input.name: integers(x, first) if first else x}, {})
    for op in graph.ops:
        value = run.stored[op.x]
        if isinstance(op, Conv | Gemm):
            q = integers(value, ops[op.y].x) if value.dtype == np.float32 else value
            run.sums[op.y] = sums(op, ops[op.y], q)
            run.stored[op.y] = finish(op, ops[op.y], run.sums[op.y])
        elif isinstance(op, Pool) and op.kind == "max":
            run.stored[op.y] = max_pool(value, op.window)
        elif isinstance(op, Flatten | Identity):  # carry integers as they are
            run.stored[op.y] = reference.apply(op, value)
        else:
            run.stored[op.y] = reference.apply(op, value.astype(np.float64)).astype(np.float32)
    return run


def integers(x: npt.NDArray[np.float32], scale: Scale) -> Stored:
    """saturate(rint(x * inverse)), NaN as 0."""
    low, high = scale.limits
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.rint(np.asarray(x, np.float32) * scale.inverse)
    return np.clip(np.where(np.isnan(rounded), 0, rounded), low, high).astype(np.int8 if scale.signed else np.uint8)


def sums(op: Conv | Gemm, quantised: QuantisedOp, x: Stored) -> npt.NDArray[np.int32]:
    """The integer sums: (N, OC, OH, OW) before any pooling, or (N, OUT)."""
    weight = quantised.weight.astype(np.float64)
    if isinstance(op, Gemm):
        return (x.reshape(len(x), -1).astype(np.float64) @ weight.T).astype(np.int32)
    rows, columns = op.window.output_size(*x.shape[2:])
    top, left, bottom, right = Pads(*op.window.pads)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    down, across = op.window.strides
    total = np.zeros((len(x), len(weight), rows * columns))
    for i in range(op.window.kernel[0]):
        for j in range(op.window.kernel[1]):
            tap = padded[:, :, i : i + down * rows : down, j : j + across * columns : across][:, :, :rows, :columns]
            total += weight[:, :, i, j] @ tap.reshape(len(x), x.shape[1], -1)
    return total.reshape(len(x), len(weight), rows, columns).astype(np.int32)


def finish(op: Conv | Gemm, quantised: QuantisedOp, sum_: npt.NDArray[np.int32]) -> Stored:
    """What the op stores, from its sums: the epilogue of the kernels."""
    channels = (-1,) + (1,) * (sum_.ndim - 2)
    bias = np.zeros(len(op.weight), np.float32) if op.bias is None else op.bias
    v = fmaf(sum_.astype(np.float32), quantised.dequant.reshape(channels), bias.reshape(channels))
    v = np.where(v < 0, np.float32(0), v) if op.relu else v
    v = max_pool(v, MAX_POOL_2X2) if isinstance(op, Conv) and op.pool else v
    return integers(v, quantised.y) if quantised.y else v


def max_pool(x: Stored, window: Window) -> Stored:
    """Max-pooling in the type of x; padding never wins."""
    fill = -np.inf if x.dtype == np.float32 else np.iinfo(x.dtype).min
    return reference.windows(x, window, fill).max(axis=(-2, -1))


def fmaf(a: Any, b: Any, c: Any) -> npt.NDArray[np.float32]:
    """a * b + c of float32 numbers, rounded once.

    The product has at most 48 bits and is exact in float64. The sum is rounded to odd there (Knuth's TwoSum gives what
    was lost; an even last bit then steps towards it), which makes the second rounding, to float32, the right one:
    S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57 (2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.broadcast_to(np.asarray(c, np.float64), product.shape)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & np.isfinite(total) & (bits & 1 == 0), bits + step, bits)
    with np.errstate(over="ignore"):
        return odd.view(np.float64).astype(np.float32)
