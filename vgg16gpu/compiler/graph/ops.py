"""The ops of a Graph, sliding windows, and Graph itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt


class Pads(NamedTuple):
    """Rows and columns of padding around a feature map."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


NO_PADS = Pads()


@dataclass(frozen=True, eq=False)
class Window:
    """Geometry of a sliding window, with every ONNX default filled in.

    same: "upper" or "lower" for auto_pad SAME_UPPER and SAME_LOWER: the padding follows from the map, so that there are
    ceil(size / stride) outputs; `pads` is unused then. ceil: sizes are rounded up, but no window begins in the padding
    behind the map (ONNX, MaxPool and AveragePool, ceil_mode).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: Pads = NO_PADS
    dilations: tuple[int, int] = (1, 1)
    same: Literal["", "upper", "lower"] = ""
    ceil: bool = False

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first to the last element of a window, both included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    def padding(self, height: int, width: int) -> Pads:
        """The padding of a map of (height, width)."""
        if not self.same:
            return self.pads
        ends = []
        for size, stride, extent in zip((height, width), self.strides, self.extent, strict=True):
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            small, large = total // 2, total - total // 2
            ends.append((small, large) if self.same == "upper" else (large, small))
        (top, bottom), (left, right) = ends
        return Pads(top, left, bottom, right)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(OH, OW) of a map of (height, width); below 1 where the window does not fit."""
        pads = self.padding(height, width)
        rows = self._count(height, pads.top, pads.bottom, 0)
        return rows, self._count(width, pads.left, pads.right, 1)

    def _count(self, size: int, before: int, after: int, axis: int) -> int:
        stride, room = self.strides[axis], size + before + after - self.extent[axis]
        if room < 0 or not self.ceil:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= size + before else count

    @property
    def is_plain(self) -> bool:
        """Whether kernel, strides and pads say it all."""
        return self.dilations == (1, 1) and not self.same and not self.ceil


MAX_POOL_2X2 = Window(kernel=(2, 2), strides=(2, 2))


def same_window(first: Window, second: Window) -> bool:
    """Whether two windows of plain geometry are equal; one that is not plain is like no other."""
    if not (first.is_plain and second.is_plain):
        return False
    return (first.kernel, first.strides, Pads(*first.pads)) == (second.kernel, second.strides, Pads(*second.pads))


Array: TypeAlias = npt.NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]
Limits: TypeAlias = tuple[float, float]  # the smallest and the largest number that comes out, 0 between them
Dim = TypeVar("Dim", bound=int | None)  # of a shape; None: open


@dataclass(frozen=True, eq=False)
class Op:
    """x -> y. `names` are the ONNX value names that this op computes, in order; the last one is `y`.

    A fused op carries several: Conv + Relu + MaxPool computes three ONNX values and stores the last.
    """

    x: str
    y: str
    names: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """Every value that it reads, in order."""
        return (self.x,)

    @property
    def results(self) -> tuple[str, ...]:
        """Every value that it computes: y first; for the shape of a further one see `shapes.further_shape`."""
        return (self.y,)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """For operands of these shapes that of x, where nobody says else: see `shapes.py`, or the op itself."""
        return shapes[0]


@dataclass(frozen=True, eq=False)
class MultiOp(Op):
    """An op that reads `others` behind x. Operands are names of run-time values or of `Graph.constants`."""

    others: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Every value that it reads, in order."""
        return (self.x, *self.others)


@dataclass(frozen=True, eq=False)
class Conv(Op):
    """y = [pool2x2]([relu](conv(x, weight) + bias)); weight is (OC, C, KH, KW), bias (OC,) or None.

    For the planner alone: `kept` is the name of the map before the pool, where one kernel stores both; `limits` stand
    in place of a ReLU (as of Gemm, Elementwise, GeneralConv and GeneralBatchNorm).
    """

    weight: Array
    bias: Array | None
    window: Window
    relu: bool = False
    pool: bool = False  # 2x2 max-pool, stride 2, no padding, after the ReLU
    weight_steps: Array | None = None  # (OC,), if the file holds integers: weight / step is one of -128..127
    kept: str | None = None
    limits: Limits | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """What lies behind the pool, and, where it is kept, what lies before."""
        return (self.y, self.kept) if self.kept else (self.y,)


@dataclass(frozen=True, eq=False)
class Pool(Op):
    """Max or average pooling.

    An average counts padded elements only with `count_include_pad`, and never those that `ceil` adds beyond the pads.
    """

    kind: Literal["max", "average"]
    window: Window
    count_include_pad: bool = False


@dataclass(frozen=True, eq=False)
class GlobalPool(Op):
    """Max or average of each channel over the whole map: (N, C, 1, 1)."""

    kind: Literal["max", "average"]


@dataclass(frozen=True, eq=False)
class Gemm(Op):
    """y = [relu](x @ weight.T + bias); weight is (OUT, IN), bias (OUT,) or None.

    With `flattens`, x is a feature map (N, C, H, W) that the op flattens in ONNX order (C, H, W) itself.
    """

    weight: Array
    bias: Array | None
    relu: bool = False
    flattens: bool = False
    weight_steps: Array | None = None  # as of Conv
    limits: Limits | None = None  # as of Conv


@dataclass(frozen=True, eq=False)
class BatchNorm(Op):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, per channel."""

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float


class Relu(Op):
    """y = 0 where x < 0, else x (NaN stays NaN)."""


class Flatten(Op):
    """(N, ...) -> (N, F) in row-major order of the ONNX shape."""


class Softmax(Op):
    """Softmax over the last axis of (N, F)."""


class Identity(Op):
    """y = x: Dropout at inference, Identity, pooling with a 1x1 window."""


@dataclass(frozen=True, eq=False)
class LocalResponseNorm(Op):
    """y[c] = x[c] / (bias + alpha / size * sum of x[j]^2)^beta over the `size` channels j around c (ONNX, LRN)."""

    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True, eq=False)
class Elementwise(MultiOp):
    """y = [relu](f(operands)), all broadcast as in numpy; its subclasses say what f is."""

    relu: bool = field(default=False, kw_only=True)
    limits: Limits | None = field(default=None, kw_only=True)  # as of Conv


@dataclass(frozen=True, eq=False)
class Arithmetic(Elementwise):
    """The sum or product of 2 to 5 operands, the difference or quotient of 2."""

    function: Literal["add", "sub", "mul", "div"] = "add"


@dataclass(frozen=True, eq=False)
class LeakyRelu(Elementwise):
    """x, or alpha * x below zero."""

    alpha: float = 0.01


@dataclass(frozen=True, eq=False)
class Clip(Elementwise):
    """x between two limits: `low` and `high`, or, if there are three operands, the second and third, of size 1."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def range(self) -> Limits:
        """The smallest and the largest number that comes out of one operand, the ReLU behind it included."""
        return (max(self.low, 0.0), max(self.high, 0.0)) if self.relu else (self.low, self.high)


@dataclass(frozen=True, eq=False)
class FakeQuantize(Elementwise):
    """QuantizeLinear and DequantizeLinear in one: x / scale, rounded to an integer from `low` to `high`, times scale.

    `low` and `high` are counted from the zero point.
    """

    scale: float = 1.0
    low: float = -128.0
    high: float = 127.0


@dataclass(frozen=True, eq=False)
class GeneralBatchNorm(MultiOp):
    """BatchNorm of any rank; operands x, scale, shift, mean, variance, each but x with a number for each channel."""

    epsilon: float = 1e-5
    relu: bool = False
    limits: Limits | None = None  # as of Conv


@dataclass(frozen=True, eq=False)
class Transpose(Op):
    """Dimension i of y is dimension `permutation[i]` of x."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Reshape(Op):
    """The elements of x, in row-major order, in another shape.

    `target` has a number for each dimension of y: 0 copies the dimension of x at its place, -1 is what is left over.
    """

    target: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Slice(Op):
    """y takes elements start, start + step, ... of each dimension, `sizes` of them. A size of None: all of x's."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Pad(Op):
    """`value` around x: so many elements before and after each dimension; negative ones take away."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float


@dataclass(frozen=True, eq=False)
class Concat(MultiOp):
    """All operands one behind the other along `axis` (not negative)."""

    axis: int = 0


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """y = numpy.take(x, indices, axis); no index is negative."""

    axis: int
    indices: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MatMul(MultiOp):
    """y = alpha * (a @ b) + beta * c, as numpy.matmul; c, if there is a third operand, is broadcast to the product.

    `transpose_a`, `transpose_b`: the last two dimensions change places first.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, eq=False)
class GeneralConv(MultiOp):
    """Conv of any group and dilation; operands x, weight (OC, C / group, KH, KW) and perhaps bias (OC,)."""

    window: Window = MAX_POOL_2X2
    group: int = 1
    relu: bool = False
    limits: Limits | None = None  # as of Conv


@dataclass(frozen=True, eq=False)
class AxisSoftmax(Op):
    """Softmax, or its logarithm, over the dimensions from `axis` to `last`, both included, together."""

    axis: int
    last: int
    log: bool = False


@dataclass(frozen=True, eq=False)
class FusedConvPair(Op):
    """y = second(first(x)), for the planner alone: one kernel computes both, and what lies between is no value."""

    first: Conv
    second: Conv

    @property
    def results(self) -> tuple[str, ...]:
        """Those of the second one."""
        return self.second.results


@dataclass(frozen=True)
class GraphInput:
    """A run-time input. None stands for a dimension that the model leaves open.

    `channels_last`: the file has it as (N, H, W, C), and users give numbers so; `shape` is (N, C, H, W) all the same.
    `is_free`: height and width stand in the file, but nothing that is computed depends on them.
    """

    name: str
    shape: tuple[int | None, ...]
    channels_last: bool = False
    is_free: bool = False

    @property
    def is_open_in_size(self) -> bool:
        """Whether images of more than one height or width can be asked for."""
        return len(self.shape) == 4 and (self.is_free or None in self.shape[2:])

    def in_file(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """A shape of this input as the file has it."""
        return shape[:1] + shape[2:] + shape[1:2] if self.channels_last else shape

    def to_file(self, x: Array) -> Array:
        """An array of this input in the order of the file; a view."""
        return np.moveaxis(x, 1, -1) if self.channels_last else x

    def from_file(self, x: Array) -> Array:
        """An array in the order of the file in that of this input; a view."""
        return np.moveaxis(x, -1, 1) if self.channels_last else x


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model. `ops` are in topological order; each value has one producer.

    `others`: run-time inputs beside `input`. `constants`: what general ops read beside run-time values. `integers`: for
    values that the file itself rounds to bytes the step, and whether they are signed. `twins`: one of `others`, and
    values that are of it what the named ones are of `input`: they share weights and scales. `compared`: features that a
    loss compares.
    """

    input: GraphInput
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    others: tuple[GraphInput, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    integers: Mapping[str, tuple[float, bool]] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[GraphInput, ...]:
        """Every run-time input."""
        return (self.input, *self.others)

    @property
    def parameters(self) -> int:
        """How many weights and biases the ops hold."""
        held = sum(array.size for op in self.ops for array in op_arrays(op))
        return held + sum(array.size for array in self.constants.values())


def parts(op: Op) -> tuple[Op, ...]:
    """The ops that a chain consists of, in order; any other op is its own only part."""
    return (op.first, op.second) if isinstance(op, FusedConvPair) else (op,)


def readers_of_values(graph: Graph) -> Mapping[str, list[Op]]:
    """The ops that read each value, each op once; what nobody reads is not there."""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in {*op.operands}:
            found.setdefault(name, []).append(op)
    return found


def with_operands(op: Op, operands: Sequence[str]) -> Op:
    """The same op, reading other values."""
    x, *others = operands
    return replace(op, x=x, others=tuple(others)) if isinstance(op, MultiOp) else replace(op, x=x)


def op_arrays(op: Op) -> tuple[Array, ...]:
    """The constant arrays of an op."""
    found = (item for part in parts(op) for item in vars(part).items() if item[0] != "weight_steps")
    return tuple(value for _, value in found if isinstance(value, np.ndarray) and value.dtype == np.float32)
