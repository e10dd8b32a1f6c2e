"""A graph as the layers that simple kernels know: convolution, bias and ReLU, pool and product, each by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Op, Pool, Relu, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.errors import ModelError

Layer: TypeAlias = Conv | Gemm | Pool


@dataclass(frozen=True, eq=False)
class Site:
    """A layer and the shapes around it, without the batch: (C, H, W), or (F,)."""

    layer: Layer
    x_shape: Shape
    y_shape: Shape
    follows_relu: bool = False  # so that no number of x is below zero

    @property
    def window(self) -> Window:
        """Window of a convolution or a pool."""
        assert not isinstance(self.layer, Gemm)
        return self.layer.window

    @property
    def weight(self) -> Array | None:
        """None for a pool."""
        return None if isinstance(self.layer, Pool) else self.layer.weight

    @property
    def bias(self) -> Array | None:
        """None for a pool, and where there is none."""
        return None if isinstance(self.layer, Pool) else self.layer.bias

    @property
    def relu(self) -> bool:
        """Return whether a ReLU follows."""
        return not isinstance(self.layer, Pool) and self.layer.relu

    @property
    def x_size(self) -> int:
        """Elements of x."""
        return math.prod(self.x_shape)

    @property
    def y_size(self) -> int:
        """Elements of y."""
        return math.prod(self.y_shape)


def sites(graph: Graph, input_shape: Shape) -> tuple[Site, ...]:
    """Return the layers of a graph in order, for one image. Raises ModelError unless it is a chain of such layers."""
    layers = unfused(graph)
    shapes = infer_shapes(layers, input_shape)
    found: list[Site] = []
    last, follows_relu = graph.input.name, False
    for op in layers.ops:
        if op.x != last or not isinstance(op, Conv | Gemm | Pool):
            raise ModelError(_refusal(op))
        _check(op)
        found.append(Site(op, shapes[op.x][1:], shapes[op.y][1:], follows_relu))
        last, follows_relu = op.y, found[-1].relu or (follows_relu and isinstance(op, Pool))
    if graph.outputs != (last,):
        raise ModelError(f"outputs {graph.outputs}: these kernels give back '{last}', the last layer's, alone")
    return tuple(found)


def unfused(graph: Graph, *, relu: bool = False) -> Graph:
    """Return the graph with every pool as an op by itself; with `relu` every ReLU too."""
    return replace(graph, ops=tuple(part for op in graph.ops for part in _parts(op, relu)))


def _parts(op: Op, relu: bool) -> Iterator[Op]:
    if not isinstance(op, Conv | Gemm):
        yield op
        return
    pools, splits = isinstance(op, Conv) and op.pool, relu and op.relu
    convolved, activated = op.y + "/sum" * splits + "/map" * pools, op.y + "/map" * pools
    alone = replace(op, pool=False) if isinstance(op, Conv) else op
    yield replace(alone, y=convolved, names=(convolved,), relu=op.relu and not splits)
    if splits:
        yield Relu(convolved, activated, (activated,))
    if pools:
        yield Pool(activated, op.y, (op.y,), "max", MAX_POOL_2X2)


def _check(layer: Layer) -> None:
    plain = isinstance(layer, Gemm) or layer.window.is_plain
    if not plain or (isinstance(layer, Pool) and layer.kind != "max"):
        raise ModelError(_refusal(layer))


def _refusal(op: Op) -> str:
    return (
        f"{type(op).__name__} '{op.y}': the simple kernels take chains of plain convolutions, max-pools and fully "
        "connected layers; the ladder takes it from the engine's FFMA kernels on"
    )
