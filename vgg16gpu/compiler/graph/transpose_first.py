"""Graph -> Graph: what a file computes on its input (N, H, W, C), before it transposes it, comes after the Transpose.

Keras' files with a Rescaling or Normalization layer, or with `preprocess_input` inside, are like that. With the
Transpose in front their input is like that of any other file of Keras (`simplify.channels_first_input`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import (
    Array,
    Concat,
    Elementwise,
    Gather,
    Graph,
    Op,
    Slice,
    Transpose,
    readers_of_values,
    with_operands,
)

CHANNELS_FIRST: Final = (0, 3, 1, 2)


def gather_slices(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """A Concat of Slices of one element each is a Gather: channels in another order (Keras' RGB to BGR)."""
    fixed = {*graph.outputs, *keep}
    slices = {op.y: op for op in graph.ops if isinstance(op, Slice)}
    readers = readers_of_values(graph)
    made: dict[str, Gather] = {}
    swallowed: set[str] = set()
    for op in graph.ops:
        if not isinstance(op, Concat) or any(name in fixed or len(readers[name]) > 1 for name in op.operands):
            continue
        if made_op := _gathered(op, [slices[name] for name in op.operands if name in slices]):
            made[op.y] = made_op
            swallowed.update(op.operands)
    if not made:
        return graph
    return replace(graph, ops=tuple(made.get(op.y, op) for op in graph.ops if op.y not in swallowed))


def _gathered(op: Concat, parts: Sequence[Slice]) -> Gather | None:
    """The Gather that a Concat of these Slices is; None if it is none."""
    picked = [index for part in parts if (index := _picked(part, op.axis)) is not None]
    sources = {part.x for part in parts}
    if len(picked) != len(op.operands) or len(sources) != 1:
        return None
    names = dict.fromkeys(name for part in parts for name in part.names)
    return Gather(sources.pop(), op.y, (*names, *op.names), op.axis, np.array(picked, np.int64))


def _picked(op: Slice, axis: int) -> int | None:
    """Which single element of `axis` a Slice takes, and all of the others; None if it is another."""
    others = [i for i in range(len(op.starts)) if i != axis]
    whole = all((op.starts[i], op.steps[i], op.sizes[i]) == (0, 1, None) for i in others)
    return op.starts[axis] if whole and op.sizes[axis] == 1 else None


def transpose_first(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Elementwise ops and new orders of channels between an input (N, H, W, C) and its Transpose come after it."""
    chain = _chain(graph, {*graph.outputs, *keep})
    if len(chain) < 2:
        return graph
    *computing, transpose = chain
    constants = dict(graph.constants)
    taken = {name for op in graph.ops for name in (op.y, *op.names)} | {*constants, graph.input.name}
    old = graph.input.name
    new = _fresh(old, taken)
    moved: list[Op] = [Transpose(old, new, (new,), CHANNELS_FIRST)]
    turned_constants: dict[str, str] = {}
    for op in computing:
        for name in graph.constants.keys() & set(op.operands) - turned_constants.keys():
            if constants[name].size > 1:
                turned_constants[name] = _fresh(name, taken)
                constants[turned_constants[name]] = _turned_array(constants[name])
        renamed = {**{name: turned_constants.get(name, name) for name in op.operands}, old: new}
        # A value in another order is not the file's: it gets a name of its own, the last one that of the Transpose.
        is_last = op is computing[-1]
        old, new = op.y, transpose.y if is_last else _fresh(op.y, taken)
        names = (*op.names, *transpose.names) if is_last else (new,)
        turned = with_operands(_turned(op), [renamed[name] for name in op.operands])
        moved.append(replace(turned, y=new, names=names))
    placed = {op.y for op in chain}
    rest = [op for op in graph.ops if op.y not in placed]  # nothing else reads the input, so these come after
    return replace(graph, ops=(*moved, *rest), constants=constants)


def _chain(graph: Graph, fixed: Collection[str]) -> list[Op]:
    """The ops from the input to the Transpose that brings channels first, both included; empty if it is not so."""
    found: list[Op] = []
    value = graph.input.name
    if len(graph.input.shape) != 4 or graph.others:
        return []
    readers = readers_of_values(graph)
    while value not in fixed:
        if len(readers.get(value, ())) != 1:
            return []
        (op,) = readers[value]
        found.append(op)
        if isinstance(op, Transpose):
            return found if op.permutation == CHANNELS_FIRST else []
        if not _can_wait(op, value, graph):
            return []
        value = op.y
    return []


def _can_wait(op: Op, value: str, graph: Graph) -> bool:
    """Whether it computes the same, element by element or along the channels, after the Transpose."""
    match op:
        case Elementwise():
            others = [name for name in op.operands if name != value]
            known = all(name in graph.constants and graph.constants[name].ndim <= 4 for name in others)
            return known and op.operands.count(value) == 1
        case Gather():
            return op.axis == 3 and op.indices.ndim == 1
        case Slice():
            return True
        case _:
            return False


def _turned(op: Op) -> Op:
    """The same op for values with their channels first."""
    match op:
        case Gather():
            return replace(op, axis=1)
        case Slice():
            starts, steps = (tuple(values[axis] for axis in CHANNELS_FIRST) for values in (op.starts, op.steps))
            return replace(op, starts=starts, steps=steps, sizes=tuple(op.sizes[axis] for axis in CHANNELS_FIRST))
        case _:
            return op


def _turned_array(array: Array) -> Array:
    """A constant that is broadcast to (N, H, W, C), for (N, C, H, W)."""
    return np.ascontiguousarray(array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(CHANNELS_FIRST))


def _fresh(name: str, taken: set[str]) -> str:
    """A name that no value has."""
    name += ".channels_first"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
