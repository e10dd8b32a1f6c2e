"""Somebody's array as the input of a run: the Python side of kernels/layout/take.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, StridedIndexer
from vgg16gpu.program.types import DType, Pointer

SOURCE = "take.cu"
ELEMENTS = (DType.F32, DType.F16, DType.BF16, DType.U8)  # that arrays may have
VARIANTS = tuple((("ELEMENT", element.number),) for element in ELEMENTS)  # tools/ptxas.py
MAX_BLOCKS = 1024  # per image


def take(
    x: Pointer, element: DType, shape: Shape, strides: Sequence[int], target: Pointer, end: Pointer
) -> KernelLaunch:
    """Copy images of any strides (in elements) to `target`, dense, as uint8 or float32; zeros behind them to `end`."""
    images, values = shape[0], math.prod(shape[1:])
    behind = Pointer(target.arena, target.offset + images * values * (1 if element is DType.U8 else 4))
    extents, steps = _joined(shape[1:], strides[1:])
    in_order = steps in ((), (1,)) and element is not DType.U8
    is_dense = in_order and values % 4 == 0 and strides[0] % 4 == 0 and x.offset % 16 == 0
    missing = StridedIndexer.RANK - len(extents)
    walk = () if is_dense else (StridedIndexer(((1,) * missing + extents, (0,) * missing + steps)),)
    return KernelLaunch(
        kernel=Kernel(SOURCE, "take_dense" if is_dense else "take", (("ELEMENT", element.number),)),
        grid=Dim3(max(1, min(MAX_BLOCKS, ceil_div(values, BLOCK * (4 if is_dense else 1)))), images),
        block=Dim3(BLOCK),
        arguments=(target, x, behind, *walk, *scalars(strides[0], values, end.offset - behind.offset)),
        nbytes=images * values * (element.nbytes + 4),
        label="images from an array",
    )


def clear(place: Pointer, end: Pointer) -> KernelLaunch:
    """Write zeros from `place` to `end`, for images that are not copied."""
    zeros = end.offset - place.offset
    return KernelLaunch(
        kernel=Kernel(SOURCE, "take_dense", (("ELEMENT", DType.F32.number),)),
        grid=Dim3(max(1, min(MAX_BLOCKS, ceil_div(zeros, BLOCK)))),
        block=Dim3(BLOCK),
        arguments=(place, place, place, *scalars(0, 0, zeros)),
        label="control words",
    )


def _joined(shape: Shape, strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and strides of the same elements in the same order with as few dimensions as possible."""
    found: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = found[-1][0] * extent, stride
        else:
            found.append((extent, stride))
    return tuple(extent for extent, _ in found), tuple(stride for _, stride in found)
