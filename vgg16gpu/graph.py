"""The canonical graph: what is left of an ONNX model once its spelling is gone.

A `Graph` is a tuple of frozen ops in topological order over SSA value names. It knows shapes (`infer_shapes`) and
nothing of devices, layouts or kernels. Feature maps are (N, C, H, W), matrices are (N, F), as in ONNX.
Dimension legend: N, C, H, W in; OC, OH, OW out; KH, KW kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import ModelError

Array: TypeAlias = npt.NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]


class Pads(NamedTuple):
    """Rows and columns of padding around a feature map."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


NO_PADS = Pads()


@dataclass(frozen=True, eq=False)
class Window:
    """Geometry of a sliding window, with every ONNX default filled in."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: Pads = NO_PADS

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(OH, OW) of a map of (height, width), rounded down as ONNX does by default."""
        rows = (height + self.pads.top + self.pads.bottom - self.kernel[0]) // self.strides[0] + 1
        columns = (width + self.pads.left + self.pads.right - self.kernel[1]) // self.strides[1] + 1
        return rows, columns


MAX_POOL_2X2 = Window(kernel=(2, 2), strides=(2, 2))


@dataclass(frozen=True, eq=False)
class Op:
    """x -> y. `names` are the ONNX value names that this op computes, in order; the last one is `y`.

    A fused op carries several: Conv + Relu + MaxPool computes three ONNX values and stores the last.
    """

    x: str
    y: str
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Conv(Op):
    """y = [pool2x2]([relu](conv(x, weight) + bias)); weight is (OC, C, KH, KW), bias (OC,) or None."""

    weight: Array
    bias: Array | None
    window: Window
    relu: bool = False
    pool: bool = False  # 2x2 max-pool, stride 2, no padding, after the ReLU


@dataclass(frozen=True, eq=False)
class Pool(Op):
    """Max or average pooling. An average counts padded elements only with `count_include_pad`."""

    kind: Literal["max", "average"]
    window: Window
    count_include_pad: bool = False


@dataclass(frozen=True, eq=False)
class Gemm(Op):
    """y = [relu](x @ weight.T + bias); weight is (OUT, IN), bias (OUT,) or None.

    With `flattens`, x is a feature map (N, C, H, W) that the op flattens in ONNX order (C, H, W) itself.
    """

    weight: Array
    bias: Array | None
    relu: bool = False
    flattens: bool = False


@dataclass(frozen=True, eq=False)
class BatchNorm(Op):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, per channel."""

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float


@dataclass(frozen=True, eq=False)
class Relu(Op):
    """y = 0 where x < 0, else x (NaN stays NaN)."""


@dataclass(frozen=True, eq=False)
class Flatten(Op):
    """(N, ...) -> (N, F) in row-major order of the ONNX shape."""


@dataclass(frozen=True, eq=False)
class Softmax(Op):
    """Softmax over the last axis of (N, F)."""


@dataclass(frozen=True, eq=False)
class Identity(Op):
    """y = x: Dropout at inference, Identity, pooling with a 1x1 window."""


@dataclass(frozen=True, eq=False)
class ConvChain(Op):
    """y = second(first(x)), for the planner alone: one kernel computes both, and what lies between is no value."""

    first: Conv
    second: Conv


@dataclass(frozen=True)
class GraphInput:
    """A run-time input. None stands for a dimension that the model leaves open."""

    name: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model. `ops` are in topological order; each value has one producer."""

    input: GraphInput
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """How many weights and biases the ops hold."""
        return sum(array.size for op in self.ops for array in op_arrays(op))


def parts(op: Op) -> tuple[Op, ...]:
    """The ops that a chain consists of, in order; any other op is its own only part."""
    return (op.first, op.second) if isinstance(op, ConvChain) else (op,)


def op_arrays(op: Op) -> tuple[Array, ...]:
    """The constant arrays of an op."""
    return tuple(value for part in parts(op) for value in vars(part).values() if isinstance(value, np.ndarray))


def output_shape(op: Op, shape: Shape) -> Shape:
    """Shape of op.y for an input of `shape`. Raises ModelError, naming op and shapes, when they do not fit."""
    match op:
        case Conv():
            return _conv_shape(op, _map_shape(op, shape))
        case ConvChain():
            return output_shape(op.second, output_shape(op.first, shape))
        case Pool():
            batch, channels, height, width = _map_shape(op, shape)
            return batch, channels, *_window_shape(op, op.window, height, width)
        case Gemm():
            return _gemm_shape(op, shape)
        case Flatten():
            return shape[0], math.prod(shape[1:])
        case Softmax():
            if len(shape) != 2:
                raise ModelError(f"Softmax '{op.y}': its input has shape {shape}; only (N, F) is supported")
            return shape
        case BatchNorm():
            channels = _map_shape(op, shape)[1]
            if channels != op.scale.size:
                raise ModelError(
                    f"BatchNormalization '{op.y}': {op.scale.size} scales for {channels} channels; the model is broken"
                )
            return shape
        case _:
            return shape


def infer_shapes(graph: Graph, input_shape: Shape) -> Mapping[str, Shape]:
    """Shape of every value for a run on `input_shape`. Raises ModelError when an op does not fit its input."""
    shapes = {graph.input.name: input_shape}
    for op in graph.ops:
        shapes[op.y] = output_shape(op, shapes[op.x])
    return shapes


def _map_shape(op: Op, shape: Shape) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ModelError(f"{type(op).__name__} '{op.y}': its input has shape {shape}; it needs (N, C, H, W)")
    return shape[0], shape[1], shape[2], shape[3]


def _window_shape(op: Op, window: Window, height: int, width: int) -> tuple[int, int]:
    rows, columns = window.output_size(height, width)
    if rows < 1 or columns < 1:
        raise ModelError(
            f"{type(op).__name__} '{op.y}': a {window.kernel[0]}x{window.kernel[1]} window does not fit "
            f"a {height}x{width} map; use a larger input image"
        )
    return rows, columns


def _conv_shape(op: Conv, shape: tuple[int, int, int, int]) -> Shape:
    batch, channels, height, width = shape
    if channels != op.weight.shape[1]:
        raise ModelError(f"Conv '{op.y}': weights for {op.weight.shape[1]} channels, input has {channels}")
    rows, columns = _window_shape(op, op.window, height, width)
    if op.pool:
        rows, columns = _window_shape(op, MAX_POOL_2X2, rows, columns)
    return batch, op.weight.shape[0], rows, columns


def _gemm_shape(op: Gemm, shape: Shape) -> Shape:
    features = math.prod(shape[1:]) if op.flattens else shape[-1]
    if (len(shape) != 2 and not op.flattens) or features != op.weight.shape[1]:
        raise ModelError(
            f"Gemm '{op.y}': weights for {op.weight.shape[1]} features, its input {shape} has {features}; "
            "the input image has the wrong size for this model"
        )
    return shape[0], op.weight.shape[0]
