"""A Clip of the run-time input: done by what takes the input in, so that it costs no pass over the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vgg16gpu.compiler.graph.ops import Clip, Graph, Limits, Op, readers_of_values, with_operands

_TAKEN_IN: Final = (2, 4)  # ranks of inputs that a kernel takes in; what has another rank is read where it is


def without_input_clip(graph: Graph) -> tuple[Graph, Limits | None]:
    """Return the graph without a Clip that alone reads its input, and the limits; the same graph and None without one.

    0 must lie between the limits, as padding is 0.
    """
    source = graph.input
    readers = readers_of_values(graph).get(source.name, [])
    if len(readers) != 1 or source.name in graph.outputs or len(source.shape) not in _TAKEN_IN:
        return graph, None
    (clip,) = readers
    if not isinstance(clip, Clip) or clip.others or clip.y in graph.outputs:
        return graph, None
    if not clip.range[0] <= 0 <= clip.range[1]:
        return graph, None

    def renamed(op: Op) -> Op:
        return with_operands(op, [source.name if name == clip.y else name for name in op.operands])

    return replace(graph, ops=tuple(renamed(op) for op in graph.ops if op is not clip)), clip.range
