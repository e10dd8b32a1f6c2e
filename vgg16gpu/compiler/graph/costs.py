"""List the ops of a graph with what each costs."""

from __future__ import annotations

from dataclasses import dataclass

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Op, Shape, op_arrays


@dataclass(frozen=True)
class OpCost:
    """One op of a graph. `flop` is 2 per multiply-add of its products, for the whole batch."""

    op: str
    name: str
    shape: Shape
    parameters: int
    flop: int


def op_costs(graph: Graph, shape: Shape) -> list[OpCost]:
    """Return each op with its output shape, parameters and FLOP, for an input of `shape`."""
    shapes = infer_shapes(graph, shape)
    return [
        OpCost(
            type(op).__name__, op.y, shapes[op.y], _parameters(op, graph), op.flop(*(shapes[x] for x in op.operands))
        )
        for op in graph.ops
    ]


def _parameters(op: Op, graph: Graph) -> int:
    held = sum(array.size for array in op_arrays(op))
    return held + sum(graph.constants[name].size for name in set(op.operands) if name in graph.constants)
