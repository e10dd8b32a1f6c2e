"""A whole model as a Graph: its inputs, its ops in order, and what follows from them for every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Dim, Op, OperandShape, Shape, op_arrays


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
        """Return whether images of more than one height or width can be asked for."""
        return len(self.shape) == 4 and (self.is_free or None in self.shape[2:])

    def in_file(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return a shape of this input in the file's order of dimensions."""
        return shape[:1] + shape[2:] + shape[1:2] if self.channels_last else shape

    def to_file(self, x: Array) -> Array:
        """Return an array of this input in the file's order of dimensions; a view."""
        return np.moveaxis(x, 1, -1) if self.channels_last else x

    def from_file(self, x: Array) -> Array:
        """Return an array in the file's order in the order of this input; a view."""
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
        """Return how many weights and biases the ops hold."""
        held = sum(array.size for op in self.ops for array in op_arrays(op))
        return held + sum(array.size for array in self.constants.values())


def readers_of_values(graph: Graph) -> Mapping[str, list[Op]]:
    """Return the ops that read each value, each op once; a value without readers has no entry."""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in {*op.operands}:
            found.setdefault(name, []).append(op)
    return found


def infer_shapes(graph: Graph, input_shape: Shape | Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Return the shape of every value, constants too, for a run on `input_shape`, or on shapes of inputs by name.

    Raises ModelError when an op does not fit what it reads.
    """
    given = input_shape if isinstance(input_shape, Mapping) else {graph.input.name: input_shape}
    shapes = {**given, **{name: array.shape for name, array in graph.constants.items()}}
    for op in graph.ops:
        shapes[op.y] = op.shape_of_y(*(shapes[name] for name in op.operands))
        shapes.update((name, op.shape_of_further(shapes[op.x])) for name in op.results[1:])
    return shapes


def value_ranks(graph: Graph) -> dict[str, int]:
    """Return the number of dimensions of each value."""
    ranks = {item.name: len(item.shape) for item in graph.inputs}
    ranks |= {name: array.ndim for name, array in graph.constants.items()}
    for op in graph.ops:
        ranks[op.y] = op.rank_of_y([ranks[name] for name in op.operands])
    return ranks


def cross_batch_op(graph: Graph, shapes: Mapping[str, Shape]) -> Op | None:
    """Return the first op that computes a row of its result from other rows too, or has no row for each image.

    `shapes` of all values, for any batch. Only without such an op may an engine fill a batch as it likes.
    """
    for op in graph.ops:
        operands = [OperandShape(shapes[name], name in graph.constants) for name in op.operands]
        if not op.keeps_rows(operands, shapes[op.y]):
            return op
    return None
