"""Where the graph's layout and the device's meet: the Python side of kernels/layout.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Flatten, Identity, Op
from vgg16gpu.ops.base import BLOCK, Lowering, ceil_div, scalars
from vgg16gpu.program import Dim3, Kernel, Layout, Pointer, Step, Value

SOURCE = "layout.cu"
MAX_INPUT_BLOCKS = 64  # per image; each leaves one status word


def input_blocks(shape: Sequence[int]) -> int:
    """Blocks per image of the kernels that take an input in; the number of its status words."""
    return min(MAX_INPUT_BLOCKS, ceil_div(math.prod(shape[2:]), BLOCK))


def to_nhwc(source: Pointer, y: Value, status: Pointer) -> Step:
    """The input as the model says, at `source`, into the device layout at `y`; NaN and Inf are reported in `status`."""
    batch, channels, *spatial = y.shape
    return Step(
        kernel=Kernel(SOURCE, "nchw_to_nhwc_f32"),
        grid=Dim3(input_blocks(y.shape), batch),
        block=Dim3(BLOCK),
        arguments=(y.pointer, source, status, *scalars(math.prod(spatial), channels, y.pitch)),
        nbytes=4 * math.prod(y.shape) + y.nbytes,
        names=(y.name,),
        label="input to NHWC",
    )


def from_nhwc(x: Value, y: Value, names: tuple[str, ...], label: str) -> Step:
    """A value in the device layout into the order of the ONNX graph. y may have another rank, or a padded pitch."""
    batch, channels, *spatial = x.shape
    row = math.prod(y.stored_shape[1:]) if y.layout is Layout.PLAIN else y.pitch
    return Step(
        kernel=Kernel(SOURCE, "nhwc_to_nchw_f32"),
        grid=Dim3(ceil_div(row, BLOCK), batch),
        block=Dim3(BLOCK),
        arguments=(y.pointer, x.pointer, *scalars(math.prod(spatial), channels, x.pitch, row)),
        nbytes=x.nbytes + y.nbytes,
        names=names,
        label=label,
    )


def flatten_steps(
    op: Op, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch."""
    del pointers, workspace, facts
    return (from_nhwc(x, y, op.names, "flatten"),)


def identity_steps(
    op: Op, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch: a copy, left only where somebody asks for both names of a value."""
    del pointers, workspace, facts
    flat = Value(x.name, (1, math.prod(x.stored_shape)), Layout.PLAIN, x.pointer)
    return (from_nhwc(flat, Value(y.name, flat.shape, Layout.PLAIN, y.pointer), op.names, "copy"),)


LOWERINGS = (Lowering(Flatten, flatten_steps), Lowering(Identity, identity_steps))
