"""Arithmetic of one value at a time, on operands of any layout: the Python side of kernels/general/elementwise.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    BatchNorm,
    Clip,
    ClipGradient,
    Elementwise,
    FakeQuantize,
    GeneralBatchNorm,
    LeakyRelu,
    Op,
    Relu,
    ReluGradient,
    Shape,
)
from vgg16gpu.compiler.op_kernels.activation import (
    CLIPS,
    NOTHING,
    Activated,
    Activation,
    activated,
    activation,
    activation_label,
    ends,
    is_activated,
)
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
from vgg16gpu.compiler.op_kernels.strided import View, room, view
from vgg16gpu.program.launch import Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Pointer, TensorDesc

SOURCE = "elementwise.cu"
# In the order of the kernel's numbers.
FUNCTIONS: Final = (
    *("add", "mul", "sub", "div", "leaky_relu", "clip", "batch_norm", "scale_shift", "quantise"),
    *("relu_gradient", "clip_gradient"),
)
VARIANTS: Final = ((), (CLIPS,))  # tools/ptxas.py
MAX_OPERANDS: Final = 5
_VECTOR: Final = 4  # floats of a 16-byte access


def elementwise_step(
    function: str,
    operands: Sequence[View],
    y: TensorDesc,
    *,
    names: tuple[str, ...],
    label: str,
    numbers: Sequence[float] = (),
    finish: Activated = NOTHING,
) -> KernelLaunch:
    """Return one launch: y = [activation](function(operands)), 1 to 5 of them, broadcast to y by numpy's rules."""
    target = room(y)
    spread = [operand.broadcast(y.shape) for operand in operands]
    walk = target.walk(*(operand.strides for operand in spread))
    extents, _, _, *rows = walk.rows
    width = _VECTOR if extents[-1] % _VECTOR == 0 and _starts_vector(y.pointer) else 1
    in_vectors = [_starts_vector(o.pointer) and _lies_in_vectors(row) for o, row in zip(spread, rows, strict=True)]
    threads = target.count // width
    grid, block = linear(max(threads, 1))  # an empty y needs a launch no less than a full one
    first, second, third = (*numbers, 0.0, 0.0, 0.0)[:3]
    return KernelLaunch(
        kernel=activated(Kernel(SOURCE, "elementwise_f32"), finish),
        grid=grid,
        block=block,
        arguments=(
            y.pointer,
            *(operand.pointer for operand in (*spread, *(MAX_OPERANDS - len(spread)) * spread[:1])),
            walk,
            *scalars(FUNCTIONS.index(function), len(spread)),
            Scalar(first, "f"),
            Scalar(second, "f"),
            Scalar(third, "f"),
            *activation(finish),
            *scalars(width, sum(bit << k for k, bit in enumerate(in_vectors)), threads),
        ),
        flop=max(len(spread) - 1 + is_activated(finish), 1) * math.prod(y.shape),
        nbytes=4 * sum(math.prod(operand.shape) for operand in operands) + y.nbytes,
        names=names,
        label=label,
    )


def relu_step(x: TensorDesc, y: TensorDesc, names: tuple[str, ...]) -> KernelLaunch:
    """Return one launch: a sum of one operand, then ReLU."""
    return elementwise_step("add", [view(x)], y, names=names, label="relu", finish=Activation(relu=True))


def relu_steps(
    layer: OpContext[Relu], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    return (relu_step(x, y, layer.op.names),)


def batch_norm_weights(layer: OpContext[BatchNorm], arena: WeightPacker) -> tuple[Pointer, Pointer]:
    """Add per channel scale / sqrt(variance + epsilon), and the shift to it, both float32."""
    op = layer.op
    scale = op.scale.astype(np.float64) / np.sqrt(op.variance.astype(np.float64) + op.epsilon)
    shift = op.shift - op.mean * scale
    stored = arena.add_channels(scale.astype(np.float32), scale.size)
    return stored, arena.add_channels(shift.astype(np.float32), shift.size)


def batch_norm_steps(
    layer: OpContext[BatchNorm], x: TensorDesc, y: TensorDesc, held: tuple[Pointer, Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del places
    parameters = [_per_channel(pointer, x.shape) for pointer in held]
    operands = [view(x), *parameters]
    return (elementwise_step("scale_shift", operands, y, names=layer.op.names, label="batch norm"),)


def elementwise_steps(
    layer: OpContext[Elementwise], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    function, numbers = _function(layer.op, layer.precision)
    return (_step(layer.op, function, [view(value) for value in x], y, numbers),)


def _function(op: Op, precision: str) -> tuple[str, tuple[float, ...]]:
    """Return the kernel's name of an op, and its numbers beside the operands."""
    match op:
        case Arithmetic():
            return op.function, ()
        case LeakyRelu():
            return "leaky_relu", (op.alpha,)
        case Clip():
            return "clip", () if op.others else (op.low, op.high)
        case FakeQuantize():
            return "quantise", (op.scale, op.low, op.high)
        case ReluGradient():
            return "relu_gradient", ()
        case ClipGradient():
            return "clip_gradient", ends((op.low, op.high), precision)
    raise TypeError(type(op).__name__)


def general_batch_norm_steps(
    layer: OpContext[GeneralBatchNorm], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    parameters = [_per_channel(value.pointer, x[0].shape) for value in x[1:]]
    return (_step(op, "batch_norm", [view(x[0]), *parameters], y, (op.epsilon,)),)


def _step(
    op: Elementwise | GeneralBatchNorm, function: str, operands: Sequence[View], y: TensorDesc, numbers: Sequence[float]
) -> KernelLaunch:
    label = function.replace("_", " ") + activation_label(op)
    return elementwise_step(function, operands, y, names=op.names, label=label, numbers=numbers, finish=op)


def _per_channel(pointer: Pointer, shape: Shape) -> View:
    """Return a vector with a number for each channel of `shape`, its dimension 1."""
    inner = len(shape) - 2
    return View(pointer, (shape[1], *(1,) * inner), (1, *(0,) * inner))


def _starts_vector(pointer: Pointer) -> bool:
    return pointer.offset % (4 * _VECTOR) == 0


def _lies_in_vectors(strides: Sequence[int]) -> bool:
    """Return whether four neighbours of the innermost dimension are four floats on a multiple of 16 bytes."""
    return strides[-1] == 1 and all(stride % _VECTOR == 0 for stride in strides[:-1])


OP_KERNELS = (
    OpKernel(Relu, relu_steps, no_weights, any_layout=True),
    OpKernel(BatchNorm, batch_norm_steps, batch_norm_weights, any_layout=True),
    MultiOpKernel(Elementwise, elementwise_steps, no_weights, any_layout=True),
    MultiOpKernel(GeneralBatchNorm, general_batch_norm_steps, no_weights, any_layout=True),
)
