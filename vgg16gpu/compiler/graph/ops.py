"""The ops of a Graph, each with its facts: shape, rank, FLOP, rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.errors import ModelError

Array: TypeAlias = npt.NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]
Limits: TypeAlias = tuple[float, float]  # the smallest and the largest number that comes out, 0 between them
Dim = TypeVar("Dim", bound=int | None)  # of a shape; None: open


class OperandShape(NamedTuple):
    """What an op reads: the shape for a batch of any size."""

    shape: Shape
    is_constant: bool


@dataclass(frozen=True, eq=False)
class Op:
    """x -> y. `names` are the ONNX value names that this op computes, in order; the last one is `y`.

    A fused op carries several: Conv + Relu + MaxPool computes three ONNX values and stores the last.
    """

    x_rank: ClassVar[int | None] = None  # the rank that x must have, of ops that take one alone
    only_rearranges: ClassVar[bool] = False  # whether it computes nothing: it brings elements to other places

    x: str
    y: str
    names: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """Every value that it reads, in order."""
        return (self.x,)

    @property
    def results(self) -> tuple[str, ...]:
        """Every value that it computes: y first; for the shape of a further one see `shape_of_further`."""
        return (self.y,)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of y for operands of these shapes.

        Raises ModelError, naming op and shapes, if they do not fit.
        """
        return shapes[0]

    def shape_of_further(self, shape: Shape) -> Shape:
        """Return the shape of a result beside y, for an x of this shape."""
        return shape

    def rank_of_y(self, ranks: Sequence[int]) -> int:
        """Return the number of dimensions of y, for operands of these numbers."""
        return max(ranks)

    def flop(self, *shapes: Shape) -> int:  # noqa: ARG002 - of operands
        """Return 2 for each multiply-add of its products, for operands of these shapes; 0 for an op without products.

        A convolution counts each output that it computes, pooled or not. Padded channels do not count.
        """
        return 0

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - of the whole batch
        """Return whether row i of y is computed from rows i of the operands alone, for a y of this shape.

        Constants are the same for all rows, so they must not have rows themselves.
        """
        return True

    def map_shape(self, shape: Shape) -> tuple[int, int, int, int]:
        """Return the shape itself, of a feature map. Raises ModelError for another rank."""
        if len(shape) != 4:
            missing = ", so a batch dimension in front" if len(shape) == 3 else ""
            raise ModelError(
                f"{type(self).__name__} '{self.y}': its input has shape {shape}; it needs (N, C, H, W){missing}"
            )
        return shape[0], shape[1], shape[2], shape[3]

    def window_shape(self, window: Window, height: int, width: int) -> tuple[int, int]:
        """Return the output size of a window that slides over a map. Raises ModelError where it does not fit."""
        rows, columns = window.output_size(height, width)
        if rows < 1 or columns < 1:
            raise ModelError(
                f"{type(self).__name__} '{self.y}': a {window.kernel[0]}x{window.kernel[1]} window does not fit "
                f"a {height}x{width} map; use a larger input image"
            )
        return rows, columns


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

    x_rank: ClassVar = 4

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
        """The pool's result, and, if it is kept, the map before the pool."""
        return (self.y, self.kept) if self.kept else (self.y,)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, OC, OH, OW)."""
        batch, channels, height, width = self.map_shape(shapes[0])
        if channels != self.weight.shape[1]:
            raise ModelError(f"Conv '{self.y}': weights for {self.weight.shape[1]} channels, input has {channels}")
        rows, columns = self.window_shape(self.window, height, width)
        if self.pool:
            rows, columns = self.window_shape(MAX_POOL_2X2, rows, columns)
        return batch, self.weight.shape[0], rows, columns

    def shape_of_further(self, shape: Shape) -> Shape:
        """Return the shape of the map before the pool."""
        return replace(self, pool=False).shape_of_y(shape)

    def flop(self, *shapes: Shape) -> int:
        """Return 2 for each multiply-add."""
        return 2 * shapes[0][0] * math.prod(self.window.output_size(*shapes[0][2:])) * self.weight.size


@dataclass(frozen=True, eq=False)
class Pool(Op):
    """Max or average pooling.

    An average counts padded elements only with `count_include_pad`, and never those that `ceil` adds beyond the pads.
    """

    x_rank: ClassVar = 4

    kind: Literal["max", "average"]
    window: Window
    count_include_pad: bool = False

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, C, OH, OW)."""
        batch, channels, height, width = self.map_shape(shapes[0])
        return batch, channels, *self.window_shape(self.window, height, width)


@dataclass(frozen=True, eq=False)
class GlobalPool(Op):
    """Max or average of each channel over the whole map: (N, C, 1, 1)."""

    x_rank: ClassVar = 4

    kind: Literal["max", "average"]

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, C, 1, 1)."""
        return *self.map_shape(shapes[0])[:2], 1, 1


@dataclass(frozen=True, eq=False)
class Gemm(Op):
    """y = [relu](x @ weight.T + bias); weight is (OUT, IN), bias (OUT,) or None.

    With `flattens`, x is a feature map (N, C, H, W) that the op flattens in ONNX order (C, H, W) itself.
    """

    x_rank: ClassVar = 2

    weight: Array
    bias: Array | None
    relu: bool = False
    flattens: bool = False
    weight_steps: Array | None = None  # as of Conv
    limits: Limits | None = None  # as of Conv

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, OUT)."""
        shape = shapes[0]
        features = math.prod(shape[1:]) if self.flattens else shape[-1]
        if (len(shape) != 2 and not self.flattens) or features != self.weight.shape[1]:
            raise ModelError(
                f"Gemm '{self.y}': weights for {self.weight.shape[1]} features, its input {shape} has {features}; "
                "the input image has the wrong size for this model"
            )
        return shape[0], self.weight.shape[0]

    def rank_of_y(self, ranks: Sequence[int]) -> int:  # noqa: ARG002 - as it is whatever x is
        """Return 2."""
        return 2

    def flop(self, *shapes: Shape) -> int:
        """Return 2 for each multiply-add."""
        return 2 * shapes[0][0] * self.weight.size


@dataclass(frozen=True, eq=False)
class BatchNorm(Op):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, per channel."""

    x_rank: ClassVar = 4

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        channels = self.map_shape(shapes[0])[1]
        if channels != self.scale.size:
            raise ModelError(
                f"BatchNormalization '{self.y}': {self.scale.size} scales for {channels} channels; the model is broken"
            )
        return shapes[0]


class Relu(Op):
    """y = 0 where x < 0, else x (NaN stays NaN)."""


class Flatten(Op):
    """(N, ...) -> (N, F) in row-major order of the ONNX shape."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, F)."""
        return shapes[0][0], math.prod(shapes[0][1:])

    def rank_of_y(self, ranks: Sequence[int]) -> int:  # noqa: ARG002 - as it is whatever x is
        """Return 2."""
        return 2


class Softmax(Op):
    """Softmax over the last axis of (N, F)."""

    x_rank: ClassVar = 2

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        if len(shapes[0]) != 2:
            raise ModelError(f"Softmax '{self.y}': its input has shape {shapes[0]}; only (N, F) is supported")
        return shapes[0]

    def rank_of_y(self, ranks: Sequence[int]) -> int:  # noqa: ARG002 - as it is whatever x is
        """Return 2."""
        return 2


class Identity(Op):
    """y = x: Dropout at inference, Identity, pooling with a 1x1 window."""


@dataclass(frozen=True, eq=False)
class LocalResponseNorm(Op):
    """y[c] = x[c] / (bias + alpha / size * sum of x[j]^2)^beta over the `size` channels j around c (ONNX, LRN)."""

    x_rank: ClassVar = 4

    size: int
    alpha: float
    beta: float
    bias: float

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        return self.map_shape(shapes[0])


@dataclass(frozen=True, eq=False)
class Elementwise(MultiOp):
    """y = [relu](f(operands)), all broadcast as in numpy; its subclasses say what f is."""

    relu: bool = field(default=False, kw_only=True)
    limits: Limits | None = field(default=None, kw_only=True)  # as of Conv

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape that all operands are broadcast to. Raises ModelError."""
        try:
            return tuple(int(dim) for dim in np.broadcast_shapes(*shapes))
        except ValueError:
            what = self.function if isinstance(self, Arithmetic) else type(self).__name__
            raise ModelError(
                f"{what} '{self.y}': shapes {' and '.join(map(str, shapes))} cannot be broadcast to each other"
            ) from None

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:
        """Return whether constants are one row, and all others have the rank of y."""
        return all(_is_one_row(shape, y) if constant else len(shape) == len(y) for shape, constant in operands)


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


class ReluGradient(Elementwise):
    """0 where x, what a ReLU has given, is 0; else the sum of 1 to 4 gradients, the further operands."""


@dataclass(frozen=True, eq=False)
class ClipGradient(Elementwise):
    """0 where x, what a Clip has given, is `low` or `high`; else the sum of 1 to 4 gradients, the further operands."""

    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, eq=False)
class GeneralBatchNorm(MultiOp):
    """BatchNorm of any rank; operands x, scale, shift, mean, variance, each but x with a number for each channel."""

    epsilon: float = 1e-5
    relu: bool = False
    limits: Limits | None = None  # as of Conv

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        shape, *parameters = shapes
        if len(shape) < 2 or any(parameter != shape[1:2] for parameter in parameters):
            raise ModelError(
                f"BatchNormalization '{self.y}': parameters of shapes {', '.join(map(str, parameters))} for an input "
                f"of shape {shape}; it needs (N, C, ...), and (C,) for each parameter"
            )
        return shape

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether all parameters are constants."""
        return all(operand.is_constant for operand in operands[1:])


@dataclass(frozen=True, eq=False)
class Transpose(Op):
    """Dimension i of y is dimension `permutation[i]` of x."""

    only_rearranges: ClassVar = True

    permutation: tuple[int, ...]

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the dimensions of x in the order of y."""
        if sorted(self.permutation) != list(range(len(shapes[0]))):
            raise ModelError(f"Transpose '{self.y}': {self.permutation} is no order of the dimensions of {shapes[0]}")
        return tuple(shapes[0][dim] for dim in self.permutation)

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether the first dimension stays."""
        return self.permutation[0] == 0


@dataclass(frozen=True, eq=False)
class Reshape(Op):
    """The elements of x, in row-major order, in another shape.

    `target` has a number for each dimension of y: 0 copies the dimension of x at its place, -1 is what is left over.
    """

    only_rearranges: ClassVar = True

    target: tuple[int, ...]

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape that `target` means for x."""
        shape = shapes[0]
        if any(dim == 0 and index >= len(shape) for index, dim in enumerate(self.target)):
            raise ModelError(
                f"Reshape '{self.y}': it copies a dimension that {shape} does not have; the model is broken"
            )
        known = [shape[index] if dim == 0 else dim for index, dim in enumerate(self.target)]
        size, rest = math.prod(shape), math.prod(dim for dim in known if dim != -1)
        if -1 in known and rest and size % rest == 0:
            known[known.index(-1)] = size // rest
        if -1 in known or math.prod(known) != size:
            raise ModelError(
                f"Reshape '{self.y}': {shape} cannot become {self.target}; the input has the wrong size for this model"
            )
        return tuple(known)

    def rank_of_y(self, ranks: Sequence[int]) -> int:  # noqa: ARG002 - as it is whatever x is
        """Return the number of dimensions of the target."""
        return len(self.target)

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:
        """Return whether the first dimension stays whatever the batch is."""
        x = operands[0].shape
        return bool(x) and bool(y) and x[0] == y[0] and self.target[0] in (0, -1)


@dataclass(frozen=True, eq=False)
class Slice(Op):
    """y takes elements start, start + step, ... of each dimension, `sizes` of them. A size of None: all of x's."""

    only_rearranges: ClassVar = True

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int | None, ...]

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the sizes, those of x where they are None."""
        return tuple(dim if size is None else size for dim, size in zip(shapes[0], self.sizes, strict=True))

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether all rows are taken."""
        return self.sizes[0] is None and (self.starts[0], self.steps[0]) == (0, 1)


@dataclass(frozen=True, eq=False)
class Pad(Op):
    """`value` around x: so many elements before and after each dimension; negative ones take away."""

    only_rearranges: ClassVar = True

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x with what is added."""
        padded = tuple(b + dim + a for b, dim, a in zip(self.before, shapes[0], self.after, strict=True))
        if min(padded, default=1) < 1:
            raise ModelError(f"Pad '{self.y}': of {shapes[0]} nothing is left")
        return padded

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether no row is added."""
        return (self.before[0], self.after[0]) == (0, 0)


@dataclass(frozen=True, eq=False)
class Concat(MultiOp):
    """All operands one behind the other along `axis` (not negative)."""

    only_rearranges: ClassVar = True

    axis: int = 0

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of the first operand, with the sum of all along `axis`."""
        first, axis = shapes[0], self.axis
        for shape in shapes[1:]:
            if len(shape) != len(first) or (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
                raise ModelError(f"Concat '{self.y}': shapes {first} and {shape} differ beside dimension {axis}")
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether rows stay rows."""
        return self.axis > 0


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """y = numpy.take(x, indices, axis); no index is negative."""

    only_rearranges: ClassVar = True

    axis: int
    indices: npt.NDArray[np.int64]

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x, with that of the indices in place of `axis`."""
        return (*shapes[0][: self.axis], *self.indices.shape, *shapes[0][self.axis + 1 :])

    def rank_of_y(self, ranks: Sequence[int]) -> int:
        """Return the rank of x, with that of the indices in place of one dimension."""
        return ranks[0] - 1 + self.indices.ndim

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether rows stay rows."""
        return self.axis > 0


@dataclass(frozen=True, eq=False)
class MatMul(MultiOp):
    """y = alpha * (a @ b) + beta * c, as numpy.matmul; c, if there is a third operand, is broadcast to the product.

    `transpose_a`, `transpose_b`: the last two dimensions change places first.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0

    def matrices(self, a: Shape, b: Shape) -> tuple[Shape, Shape]:
        """Return the shapes that numpy.matmul multiplies: transposed, vectors as matrices of one row or column."""
        left = (*a[:-2], a[-1], a[-2]) if self.transpose_a else a
        right = (*b[:-2], b[-1], b[-2]) if self.transpose_b else b
        return left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of the product."""
        a, b, c = (*shapes, None)[:3]
        if not a or not b:
            raise ModelError(f"MatMul '{self.y}': shapes {a} and {b}; a scalar is no matrix")
        left, right = self.matrices(a, b)
        if left[-1] != right[-2]:
            raise ModelError(
                f"MatMul '{self.y}': {a} times {b}; {left[-1]} columns meet {right[-2]} rows: "
                "the input has the wrong size for this model"
            )
        try:
            batch = np.broadcast_shapes(left[:-2], right[:-2])
            product = (*batch, *left[-2:-1][: len(a) > 1], *right[-1:][: len(b) > 1])
            if c is not None and np.broadcast_shapes(product, c) != product:
                raise ValueError
        except ValueError:
            raise ModelError(f"MatMul '{self.y}': shapes {a}, {b} and {c} do not fit each other") from None
        return product

    def rank_of_y(self, ranks: Sequence[int]) -> int:
        """Return the rank of the product."""
        return max(*ranks[:2], 2) - ranks[:2].count(1)

    def flop(self, *shapes: Shape) -> int:
        """Return 2 for each multiply-add."""
        return 2 * math.prod(self.shape_of_y(*shapes)) * self.matrices(shapes[0], shapes[1])[0][-1]

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:
        """Return whether rows of a are multiplied by one b, or matrices of a by those of b."""
        a, b, *others = operands
        rank, right = len(a.shape), len(b.shape)
        if a.is_constant or rank == 1 or (self.transpose_a and rank == 2):
            return False
        if any(not other.is_constant or not _is_one_row(other.shape, y) for other in others):
            return False
        if b.is_constant:
            return right < rank or right == 2
        return right == rank > 2


@dataclass(frozen=True, eq=False)
class GeneralConv(MultiOp):
    """Conv of any group and dilation; operands x, weight (OC, C / group, KH, KW) and perhaps bias (OC,)."""

    x_rank: ClassVar = 4

    window: Window = MAX_POOL_2X2
    group: int = 1
    relu: bool = False
    limits: Limits | None = None  # as of Conv

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, OC, OH, OW)."""
        shape, weight, *biases = shapes
        batch, channels, height, width = self.map_shape(shape)
        if len(weight) != 4 or weight[2:] != self.window.kernel or weight[0] % self.group:
            raise ModelError(
                f"Conv '{self.y}': weights of shape {weight} for {self.window.kernel} windows, {self.group} groups"
            )
        if channels != weight[1] * self.group:
            raise ModelError(f"Conv '{self.y}': weights for {weight[1] * self.group} channels, input has {channels}")
        if biases and biases[0] != weight[:1]:
            raise ModelError(f"Conv '{self.y}': a bias of shape {biases[0]} for {weight[0]} output channels")
        return batch, weight[0], *self.window_shape(self.window, height, width)

    def flop(self, *shapes: Shape) -> int:
        """Return 2 for each multiply-add."""
        return 2 * math.prod(self.shape_of_y(*shapes)) * math.prod(shapes[1][1:])

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether weight and bias are constants."""
        return all(operand.is_constant for operand in operands[1:])


@dataclass(frozen=True, eq=False)
class AxisSoftmax(Op):
    """Softmax, or its logarithm, over the dimensions from `axis` to `last`, both included, together."""

    axis: int
    last: int
    log: bool = False

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of x."""
        if not 0 <= self.axis <= self.last < len(shapes[0]):
            raise ModelError(f"Softmax '{self.y}': its input of shape {shapes[0]} has no dimension {self.last}")
        return shapes[0]

    def keeps_rows(self, operands: Sequence[OperandShape], y: Shape) -> bool:  # noqa: ARG002 - as for all ops
        """Return whether the softmax is of each row."""
        return self.axis > 0


@dataclass(frozen=True, eq=False)
class FusedConvPair(Op):
    """y = second(first(x)), for the planner alone: one kernel computes both, and what lies between is no value."""

    first: Conv
    second: Conv

    @property
    def results(self) -> tuple[str, ...]:
        """The results of the second convolution."""
        return self.second.results

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of the second convolution's y."""
        return self.second.shape_of_y(self.first.shape_of_y(*shapes))

    def shape_of_further(self, shape: Shape) -> Shape:
        """Return the shape of the second convolution's map before its pool."""
        return self.second.shape_of_further(self.first.shape_of_y(shape))


def parts(op: Op) -> tuple[Op, ...]:
    """Return the ops of a chain in order; any other op is its own only part."""
    return (op.first, op.second) if isinstance(op, FusedConvPair) else (op,)


def with_operands(op: Op, operands: Sequence[str]) -> Op:
    """Return the same op with other operands."""
    x, *others = operands
    return replace(op, x=x, others=tuple(others)) if isinstance(op, MultiOp) else replace(op, x=x)


def op_arrays(op: Op) -> tuple[Array, ...]:
    """Return the constant float32 arrays of an op, without `weight_steps`."""
    found = (item for part in parts(op) for item in vars(part).items() if item[0] != "weight_steps")
    return tuple(value for _, value in found if isinstance(value, np.ndarray) and value.dtype == np.float32)


def _is_one_row(shape: Shape, y: Shape) -> bool:
    """Return whether what is broadcast to y is the same for all of its rows."""
    return len(shape) < len(y) or shape[0] == 1
