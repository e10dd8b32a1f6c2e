"""What becomes of the QuantizeLinear and DequantizeLinear of a model file: scales for int8, nothing otherwise.

A file in that form rounds values to integers between its operators, which the loader gives as Elementwise "quantise".
In int8 the kernels round in the same places by themselves, where the integers are what they can hold: bytes 0..255 or
-128..127 without a zero point. Anything else stays an op, and who reads it computes in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vgg16gpu.graph import Elementwise, Flatten, Graph, Identity, Op, Pool

_SIGNED: Final[Mapping[tuple[float, float], bool]] = {(-128.0, 127.0): True, (0.0, 255.0): False}


def dequantised(graph: Graph) -> Graph:
    """The model before it was quantised: values are not rounded (weights stay as the integers make them)."""
    return replace(graph, ops=tuple(_as_identity(op) if _is_quantise(op) else op for op in graph.ops))


def lifted(graph: Graph) -> Graph:
    """The same with `Graph.integers` in place of the ops that int8 kernels do not need. Run it before `simplify`."""
    integers: dict[str, tuple[float, bool]] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if _is_quantise(op) and (stored := _integers(op)) and _reads_alone(graph, op):
            integers[op.x] = integers[op.y] = stored
            op = _as_identity(op)  # noqa: PLW2901
        ops.append(op)
    for op in reversed(ops):
        if _carries(op) and op.y in integers and _reads_alone(graph, op):
            integers.setdefault(op.x, integers[op.y])
    return replace(graph, ops=tuple(ops), integers=integers)


def _is_quantise(op: Op) -> bool:
    return isinstance(op, Elementwise) and op.function == "quantise"


def _as_identity(op: Op) -> Op:
    return Identity(op.x, op.y, op.names)


def _integers(op: Op) -> tuple[float, bool] | None:
    """Step and sign of the integers that an op rounds to; None if the kernels cannot hold them."""
    assert isinstance(op, Elementwise)
    step, *limits = op.numbers
    signed = _SIGNED.get((limits[0], limits[1]))
    return None if signed is None or op.relu else (step, signed)


def _reads_alone(graph: Graph, op: Op) -> bool:
    """Whether nobody else wants what it reads as it is."""
    readers = [other for other in graph.ops if op.x in other.operands]
    return readers == [op] and op.x not in graph.outputs


def _carries(op: Op) -> bool:
    """Whether integers pass through it unchanged."""
    return isinstance(op, Flatten | Identity) or (isinstance(op, Pool) and op.kind == "max")
