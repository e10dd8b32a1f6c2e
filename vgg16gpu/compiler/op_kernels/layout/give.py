"""Outputs in the form that somebody wants: the Python side of kernels/layout/give.cu."""

from __future__ import annotations

import math
from typing import NamedTuple

from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import DType, Layout, Pointer, TensorDesc, TensorFormat

SOURCE = "give.cu"
TILE = 32
NARROW = 8  # columns that a thread of give_narrow has
MAX_BLOCKS = 4096  # per image
VARIANTS = tuple(
    (("INPUT", stored.number), ("OUTPUT", given.number), *factor)
    for stored, given, factor in (
        *((element, DType.F32, ()) for element in DType),
        (DType.F32, DType.BF16, ()),
        (DType.F16, DType.F16, ()),
        (DType.BF16, DType.BF16, ()),
        (DType.F16_PAIR, DType.F32, (("FACTOR", 1),)),
    )
)  # tools/ptxas.py


class _Matrices(NamedTuple):
    """A value, or a form of it, as matrices: one for each image."""

    rows: int
    columns: int
    inp_pitch: int
    out_pitch: int
    turned: bool


def give(x: TensorDesc, form: TensorFormat, target: Pointer, images: int | None = None) -> KernelLaunch:
    """Write a stored value in this form to `target`: all of it, or its first `images` images."""
    found = _matrices(x, form)
    images = images or _images(x)
    straight = Dim3(max(1, min(MAX_BLOCKS, ceil_div(found.rows * found.columns, BLOCK))), images)
    turned = Dim3(ceil_div(found.rows, TILE), ceil_div(found.columns, TILE), images)
    narrow = Dim3(ceil_div(found.rows, BLOCK), images)
    across = ("give_narrow", narrow) if found.columns <= NARROW else ("give_turned", turned)
    kernel, grid = across if found.turned else ("give_straight", straight)
    macros = (("INPUT", x.element.number), ("OUTPUT", form.element.number), *((("FACTOR", 1),) if x.factor else ()))
    return KernelLaunch(
        kernel=Kernel(SOURCE, kernel, macros),
        grid=grid,
        block=Dim3(BLOCK),
        arguments=(
            *(target, x.pointer, x.factor or x.scale or x.pointer),
            *scalars(_images(x), *found[:4]),
            Scalar(x.step, "f"),
        ),
        nbytes=x.nbytes + form.element.nbytes * math.prod(x.shape),
        names=(x.name,),
        label=f"output {x.name}",
    )


def _images(x: TensorDesc) -> int:
    """Return how many matrices are stored: one where there are no rows for images."""
    return x.shape[0] if len(x.shape) > 1 else 1


def _matrices(x: TensorDesc, form: TensorFormat) -> _Matrices:
    per_image = math.prod(x.shape[1:]) if len(x.shape) > 1 else math.prod(x.shape)
    if len(x.shape) not in (2, 4):
        return _Matrices(1, per_image, per_image, per_image, turned=False)
    channels, pixels = x.shape[1], math.prod(x.shape[2:])
    if x.layout is Layout.NHWC:
        if form.pitch is None and min(pixels, channels) > 1:
            return _Matrices(pixels, channels, x.pitch, pixels, turned=True)
        return _Matrices(pixels, channels, x.pitch, form.pitch or channels, turned=False)
    if form.pitch is None or pixels == 1:
        return _Matrices(1, per_image, per_image, form.pitch or per_image, turned=False)
    return _Matrices(channels, pixels, pixels, form.pitch, turned=True)
