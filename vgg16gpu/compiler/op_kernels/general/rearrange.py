"""Elements brought to other places, between values of any layout: the Python side of kernels/general/rearrange.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from vgg16gpu.compiler.graph.ops import Concat, Gather, Pad, Reshape, Slice, Transpose
from vgg16gpu.compiler.op_kernels.base import (
    MultiOpKernel,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    WeightPacker,
    linear,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.strided import IterationSpace, View, plain_strides, room, view
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import Argument, Kernel, KernelLaunch, Scalar, StridedIndexer
from vgg16gpu.program.types import Pointer, TensorDesc

SOURCE = "rearrange.cu"


@dataclass(frozen=True)
class CopyTarget:
    """Where a launch writes: a room from this place on."""

    pointer: Pointer
    room: IterationSpace


def copy_step(
    source: View,
    target: CopyTarget,
    *,
    names: tuple[str, ...],
    label: str,
    starts: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
    fill: float = 0.0,
) -> KernelLaunch:
    """Return one launch: element i of `target` is element starts + i * steps of `source`, or `fill` beyond its ends.

    Dimensions of both are in the ONNX order of the output. Without starts and steps: element i.
    """
    rank = len(source.shape)
    last = tuple(dim - 1 for dim in source.shape)
    walk = target.room.walk(starts or (0,) * rank, steps or (1,) * rank, last, source.strides)
    return _step("rearrange_f32", target, (source.pointer, walk, Scalar(fill, "f")), names, label)


def whole(y: TensorDesc) -> CopyTarget:
    """Return all of a value as a target."""
    return CopyTarget(y.pointer, room(y))


def transpose_steps(
    layer: OpContext[Transpose], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    return (copy_step(view(x).permuted(op.permutation), whole(y), names=op.names, label="transpose"),)


def slice_steps(
    layer: OpContext[Slice], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    steps = tuple(step if size > 1 else 1 for step, size in zip(op.steps, y.shape, strict=True))  # 2^40, say, to one
    return (copy_step(view(x), whole(y), names=op.names, label="slice", starts=op.starts, steps=steps),)


def pad_steps(
    layer: OpContext[Pad], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    starts = tuple(-before for before in op.before)
    return (copy_step(view(x), whole(y), names=op.names, label="pad", starts=starts, fill=op.value),)


def concat_steps(
    layer: OpContext[Concat], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch for each operand; the last one also writes y's padding where that lies behind it."""
    del held, places
    op = layer.op
    made, begin = [], 0
    for number, operand in enumerate(x, start=1):
        target = _part(y, op.axis, begin, operand.shape[op.axis], is_last=number == len(x))
        label = f"concat {number} of {len(x)}"
        made.append(copy_step(view(operand), target, names=op.names, label=label))
        begin += operand.shape[op.axis]
    return tuple(made)


def reshape_steps(
    layer: OpContext[Reshape], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    source, target = view(x), whole(y)
    missing = StridedIndexer.RANK - len(source.shape)
    rows = target.room.walk(plain_strides(y.shape)).rows
    walk = StridedIndexer((*rows, (1,) * missing + source.shape, (0,) * missing + source.strides))
    return (_step("reshape_f32", target, (source.pointer, walk), layer.op.names, "reshape"),)


def gather_weights(layer: OpContext[Gather], arena: WeightPacker) -> tuple[Pointer]:
    """Add the indices as int32."""
    op = layer.op
    return (arena.add(np.ascontiguousarray(op.indices, np.int32)),)


def gather_steps(
    layer: OpContext[Gather], x: TensorDesc, y: TensorDesc, held: tuple[Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. Raises ModelError for an index that x does not have."""
    del places
    op = layer.op
    if op.indices.size and op.indices.max() >= x.shape[op.axis]:
        raise ModelError(
            f"Gather '{op.y}': index {op.indices.max()} along dimension {op.axis} of {x.shape}; "
            "the input has the wrong size for this model"
        )
    source, target = view(x), whole(y)
    before, after = source.strides[: op.axis], source.strides[op.axis + 1 :]
    rows = (*before, *(0,) * op.indices.ndim, *after)
    of_indices = ((0,) * len(before), plain_strides(op.indices.shape), (0,) * len(after))
    walk = target.room.walk(rows, sum(of_indices, ()))
    arguments: tuple[Argument, ...] = (source.pointer, *held, walk, *scalars(source.strides[op.axis]))
    return (_step("gather_f32", target, arguments, op.names, "gather"),)


def _part(y: TensorDesc, axis: int, begin: int, size: int, *, is_last: bool) -> CopyTarget:
    """Return the target of an operand of a concatenation: `size` of y's elements along `axis`, from `begin` on."""
    all_of_it = room(y)
    dim = all_of_it.order.index(axis)
    stored = all_of_it.extents[dim] - begin if is_last else size
    pointer = Pointer(y.pointer.arena, y.pointer.offset + 4 * begin * all_of_it.strides[dim])
    extents = (*all_of_it.extents[:dim], stored, *all_of_it.extents[dim + 1 :])
    limits = (*all_of_it.limits[:dim], size, *all_of_it.limits[dim + 1 :])
    return CopyTarget(pointer, replace(all_of_it, extents=extents, limits=limits))


def _step(
    kernel: str, target: CopyTarget, arguments: tuple[Argument, ...], names: tuple[str, ...], label: str
) -> KernelLaunch:
    count = target.room.count
    grid, block = linear(max(count, 1))  # an empty value needs a launch no less than a full one
    return KernelLaunch(
        kernel=Kernel(SOURCE, kernel),
        grid=grid,
        block=block,
        arguments=(target.pointer, *arguments, *scalars(count)),
        nbytes=4 * (math.prod(target.room.limits) + count),
        names=names,
        label=label,
    )


OP_KERNELS = (
    OpKernel(Transpose, transpose_steps, no_weights, any_layout=True),
    OpKernel(Slice, slice_steps, no_weights, any_layout=True),
    OpKernel(Pad, pad_steps, no_weights, any_layout=True),
    MultiOpKernel(Concat, concat_steps, no_weights, any_layout=True),
    OpKernel(Reshape, reshape_steps, no_weights, any_layout=True),
    OpKernel(Gather, gather_steps, gather_weights, any_layout=True),
)
