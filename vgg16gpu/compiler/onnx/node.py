"""An ONNX node as the rules see it: operands that are computed at run time, and operands that are constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Op, Shape
from vgg16gpu.compiler.onnx.file import Constant
from vgg16gpu.compiler.onnx.folding.budget import FoldingBudget
from vgg16gpu.compiler.onnx.folding.fold import OpenShape, has_marks
from vgg16gpu.compiler.onnx.initializers import Stored

FLOAT32_REMEDY: Final = "export the model in float32"
EXPORT_AGAIN: Final = "the file is broken, export the model again"


class UnsupportedNodeError(Exception):
    """Why a node is not supported, and what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")


class MisfitError(UnsupportedNodeError):
    """A node that does not fit the size of the input; `op` might for another one."""

    def __init__(self, reason: str, op: Op) -> None:
        super().__init__(reason, "export the model for another input size")
        self.op = op


class UnknownShapeError(Exception):
    """A rule needs the shape of a value that a refused node computes, so nothing can be said of its node."""


class Integers(NamedTuple):
    """What QuantizeLinear makes of a run-time value: a real number is (q - zero) * scale."""

    scale: float
    zero: int
    dtype: np.dtype[Any]


@dataclass(eq=False)
class OnnxValue:
    """What is known of a value of the file, or of one that a rule has added.

    A constant has its numbers in `array` once somebody has asked for it; `stored` is what the file or the caller has.
    A run-time value has a shape, which is None behind a refused node.
    """

    name: str
    stored: Stored | Constant | None = None
    producer: int | None = None  # the index of the node that computes it
    is_read: bool = False  # a requested output needs it
    is_refused: bool = False  # output of a node that is refused, or of which nothing can be said
    is_run_time: bool = False
    shape: OpenShape | None = None
    array: Constant | None = None
    steps: Array | None = None  # of a weight that the file holds as integers, in a shape that broadcasts to its
    integers: Integers | None = None  # it is integers in the file; in the graph it is the real numbers meant
    rows: int | None = None  # it is (N * rows, F) in the file, N open; in the graph it is (N, rows, F)

    @property
    def is_constant(self) -> bool:
        """Return whether its numbers are known."""
        return self.array is not None

    def becomes_constant(self, array: Constant) -> None:
        """Set the numbers, which have been read or computed."""
        self.array, self.shape = array, array.shape

    def becomes_run_time(self, shape: OpenShape | None) -> None:
        """Mark the value as an input or an op's result."""
        self.is_run_time, self.shape = True, shape


@dataclass
class ImportContext:
    """Every value by name, and what rules add to a graph beside ops: `held`, float constants that general ops read.

    remarks: what rules have to say of a node that they take.
    """

    values: dict[str, OnnxValue]
    memory: FoldingBudget = field(default_factory=FoldingBudget)
    held: dict[str, Array] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def fresh(self, stem: str) -> str:
        """Return a name that no other value has."""
        for number in itertools.count():
            name = f"{stem}.{number}"
            if name not in self.values:
                self.values[name] = OnnxValue(name)
                return name
        raise AssertionError

    def hold(self, name: str, array: Array) -> str:
        """Make a constant an operand of general ops."""
        if not array.flags.c_contiguous:
            self.memory.take(array.shape, array.dtype)
        self.held[name] = np.ascontiguousarray(array).reshape(array.shape)
        if not self.values[name].is_constant:
            self.values[name].becomes_constant(self.held[name])
        return name


@dataclass(frozen=True, eq=False)
class NodeView:
    """A node with every name looked up."""

    opset: int
    attributes: Mapping[str, Any]
    names: tuple[str, ...]  # of the operands; "" where one is left out
    operands: tuple[OnnxValue | None, ...]
    y: str
    extra_outputs: tuple[str, ...]  # after y
    scope: ImportContext

    def operand(self, index: int) -> OnnxValue | None:
        """Return operand `index`, or None when it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    @property
    def x(self) -> str:
        """Name of the first operand."""
        return self.value(0)

    @property
    def first(self) -> OnnxValue:
        """The first operand, as an op that reads values takes it."""
        return self.scope.values[self.x]

    @property
    def result(self) -> OnnxValue:
        """The value that the node computes."""
        return self.scope.values[self.y]

    @property
    def shape(self) -> OpenShape:
        """Shape of the first operand."""
        return self.shape_of(0)

    @property
    def fixed(self) -> Shape | None:
        """Shape of the first operand if the model leaves nothing open."""
        return None if None in self.shape else cast(Shape, self.shape)

    @property
    def rank(self) -> int | None:
        """Dimensions of the first operand, if known."""
        return None if self.is_unknown(0) else len(self.shape)

    @property
    def used_outputs(self) -> tuple[str, ...]:
        """Outputs after y that the model needs."""
        return tuple(name for name in self.extra_outputs if self.scope.values[name].is_read)

    def is_constant(self, index: int) -> bool:
        """Return whether an operand is a constant."""
        operand = self.operand(index)
        return operand is not None and operand.is_constant

    def is_unknown(self, index: int) -> bool:
        """Return whether an operand is a value behind a refused node."""
        operand = self.operand(index)
        return operand is not None and operand.shape is None

    def is_number(self, index: int) -> bool:
        """Return whether an operand has one element."""
        return all(dim == 1 for dim in self.shape_of(index))

    def shape_of(self, index: int) -> OpenShape:
        """Return the shape of an operand that is there. Raises UnknownShapeError behind a refused node."""
        operand = self._present(index)
        if operand.shape is None:
            raise UnknownShapeError
        return operand.shape

    def value(self, index: int, what: str = "operand") -> str:
        """Return an operand for an op that reads values: the name of a run-time value, or of a graph constant."""
        if not self._present(index).is_constant:
            return self.names[index]
        return self.scope.hold(self.names[index], self.weight(index, what))

    def constant(self, index: int) -> Constant | None:
        """Return an operand that must be a constant, or None when it is left out. Raises UnsupportedNodeError."""
        operand = self.operand(index)
        if operand is not None and operand.array is None:
            raise UnsupportedNodeError(
                f"its operands '{operand.name}' are computed at run time", "they must be constants"
            )
        return None if operand is None else operand.array

    def weight(self, index: int, what: str) -> Array:
        """Return a constant operand of float32 that must be there. Raises UnsupportedNodeError."""
        array = self.constant(index)
        if array is None:
            raise UnsupportedNodeError(f"it has no {what}", EXPORT_AGAIN)
        if array.dtype != np.float32:
            raise UnsupportedNodeError(f"its {what} has element type {array.dtype}", FLOAT32_REMEDY)
        if array.size == 0:
            raise UnsupportedNodeError(f"its {what} of shape {array.shape} is empty", EXPORT_AGAIN)
        return cast(Array, array)

    def weight_steps(self, index: int, *, transposed: bool = False) -> Array | None:
        """Return the steps of a weight that the file holds as integers: one for each output, its first dimension.

        None where there are none, or steps of another dimension. `transposed`: the weight is a matrix (IN, OUT).
        """
        steps, shape = self._present(index).steps, cast(Shape, self.shape_of(index))
        if steps is None:
            return None
        steps, shape = (steps.T, shape[::-1]) if transposed else (steps, shape)
        if math.prod(steps.shape[1:]) != 1:
            return None
        return np.ascontiguousarray(np.broadcast_to(steps.reshape(-1), shape[:1]))

    def integers(self, index: int, what: str) -> tuple[int, ...] | None:
        """Return a constant operand of integers, None when it is left out. Raises UnsupportedNodeError."""
        array = self.constant(index)
        if array is None:
            return None
        if array.ndim > 1 or array.dtype.kind not in "iu":
            raise UnsupportedNodeError(
                f"its {what} are {array.dtype} of shape {array.shape}, not whole numbers", EXPORT_AGAIN
            )
        if has_marks(array):
            raise UnsupportedNodeError(f"its {what} depend on a dimension that is open", "export with fixed sizes")
        return tuple(int(number) for number in array.reshape(-1))

    def axes(self, index: int, since: int) -> tuple[int, ...] | None:
        """Return axes from an attribute, or from operand `index` since an opset; they may be negative."""
        if self.opset < since:
            found = self.attributes.get("axes")
            return None if found is None else tuple(found)
        return self.integers(index, "axes")

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute `axis`, counted from the front. Raises UnsupportedNodeError."""
        return positive_axis(self.attributes.get("axis", default), rank)

    def flag(self, name: str) -> bool:
        """Return an attribute that is 0, the default, or 1. Raises UnsupportedNodeError for another value."""
        value = self.attributes.get(name, 0)
        if value not in (0, 1):
            raise UnsupportedNodeError(f"{name} is {value}", "0 or 1 is needed")
        return bool(value)

    def only(self, name: str, accepted: object, default: object, remedy: str) -> None:
        """Refuse any value of an attribute but the accepted one."""
        value = self.attributes.get(name, default)
        if value != accepted:
            raise UnsupportedNodeError(f"{name} is {value}, only {accepted} is supported", remedy)

    def _present(self, index: int) -> OnnxValue:
        operand = self.operand(index)
        if operand is None:
            raise UnsupportedNodeError(f"its operand {index} is left out", EXPORT_AGAIN)
        return operand


def positive_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front, for a value of `rank` dimensions. Raises UnsupportedNodeError."""
    if not -rank <= axis < rank:
        raise UnsupportedNodeError(f"axis is {axis} for {rank} dimensions", EXPORT_AGAIN)
    return axis % rank


Rule: TypeAlias = Callable[[NodeView], Op | tuple[Op, ...]]  # from a node to canonical ops
