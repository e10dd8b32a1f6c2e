"""The initializers of a graph, dense and sparse ones."""

from __future__ import annotations

from typing import TypeAlias

from onnx import GraphProto, SparseTensorProto, TensorProto

Stored: TypeAlias = TensorProto | SparseTensorProto


def initializers(graph: GraphProto) -> list[tuple[str, Stored]]:
    """Return name and tensor of each initializer, in the order of the file; a sparse one is called as its values."""
    dense = [(tensor.name, tensor) for tensor in graph.initializer]
    return [*dense, *((tensor.values.name, tensor) for tensor in graph.sparse_initializer)]


def initializer_names(graph: GraphProto) -> set[str]:
    """Return the names of all initializers."""
    return {name for name, _ in initializers(graph)}
