"""One spelling for what ONNX files spell in several ways, so that whoever reads a model meets one.

Nodes stand behind those whose results they read: some tools write them in another order. The domain "ai.onnx" is "",
as onnx.proto says. A dimension of an input that is -1 is open: exporters that know no names for dimensions write so.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Final

from onnx import GraphProto, ModelProto, NodeProto

_STANDARD: Final = "ai.onnx"
_OPEN: Final = -1


def normalise(model: ModelProto) -> ModelProto:
    """Rewrite a parsed model into the one spelling, in place, and return it. Nodes that form a cycle stay one."""
    _open_dimensions(model.graph)
    for function in model.functions:
        function.domain = _domain(function.domain)
        _normalise_nodes(function.node)
    _normalise_nodes(model.graph.node)
    return model


def _normalise_nodes(nodes: Any) -> None:
    """Normalise the nodes of a graph or function, a repeated field, in place."""
    for node in nodes:
        node.domain = _domain(node.domain)
    order = _order(nodes)
    if order != list(range(len(nodes))):
        ordered = [nodes[index] for index in order]
        copies = GraphProto(node=ordered)
        del nodes[:]
        nodes.extend(copies.node)


def _domain(name: str) -> str:
    return "" if name == _STANDARD else name


def _open_dimensions(graph: GraphProto) -> None:
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value == _OPEN:
                dim.ClearField("dim_value")


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """Return the nodes' indices, each behind those that it reads, as near to the order of the file as that allows.

    In a cycle its first node comes first: it alone reads what comes later. The nodes of a second cycle stay in the
    order of the file.
    """
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name:
                producers.setdefault(name, index)
    if all(producers.get(name, -1) < index for index, node in enumerate(nodes) for name in node.input):
        return list(range(len(nodes)))
    reads = [{producers[name] for name in node.input if name in producers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, found in enumerate(reads):
        for producer in found:
            readers[producer].append(index)
    missing = [len(found) for found in reads]
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    done = [False] * len(nodes)
    has_cycle = False
    while len(order) < len(nodes):
        if not ready and has_cycle:
            return order + [index for index, is_done in enumerate(done) if not is_done]
        if not ready:
            has_cycle = True
            ready.append(_first_of_a_cycle(reads, done))
        index = heapq.heappop(ready)
        done[index] = True
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader] and not done[reader]:
                heapq.heappush(ready, reader)
    return order


def _first_of_a_cycle(reads: Sequence[set[int]], done: Sequence[bool]) -> int:
    """Return the first node of a cycle that the nodes which are not done wait for."""
    index = done.index(False)
    path: dict[int, int] = {}
    while index not in path:
        path[index] = len(path)
        index = min(each for each in reads[index] if not done[each])
    return min(each for each, place in path.items() if place >= path[index])
