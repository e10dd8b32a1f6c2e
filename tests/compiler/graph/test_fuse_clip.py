"""passes.fuse_clip: clips become limits of what they follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    Clip,
    Conv,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    LeakyRelu,
    Limits,
    Op,
    Pool,
    Relu,
)
from vgg16gpu.compiler.graph.passes import CLIP_PASSES, fuse_clip, simplify
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window

Made: TypeAlias = Callable[[str, str, tuple[str, ...]], Op]
WEIGHT = np.ones((3, 3, 1, 1), np.float32)


def clip(low: float, high: float, **options: Any) -> Made:
    return lambda x, y, names: Clip(x, y, names, low=low, high=high, **options)


def conv(**options: Any) -> Made:
    return lambda x, y, names: Conv(x, y, names, WEIGHT, None, Window((1, 1)), **options)


def pool(kind: Any = "max", window: Window = MAX_POOL_2X2, **options: Any) -> Made:
    return lambda x, y, names: Pool(x, y, names, kind, window, **options)


def gemm(x: str, y: str, names: tuple[str, ...]) -> Op:
    return Gemm(x, y, names, np.ones((3, 192), np.float32), None, flattens=True)


OTHERS: Mapping[str, Made] = {
    "general convolution": lambda x, y, names: GeneralConv(x, y, names, ("w",), Window((1, 1))),
    "batch norm": lambda x, y, names: GeneralBatchNorm(x, y, names, ("w",) * 4),
    "sum": lambda x, y, names: Arithmetic(x, y, names, ("w",)),
    "leaky": LeakyRelu,
    "gemm": gemm,
}


def chain(*makers: Made, outputs: tuple[str, ...] = ()) -> Graph:
    ops = tuple(make(f"v{i}", f"v{i + 1}", (f"v{i + 1}",)) for i, make in enumerate(makers))
    constants = {"w": WEIGHT}
    return Graph(GraphInput("v0", (None, 3, 8, 8)), ops, outputs or (f"v{len(ops)}",), (), constants)


def found(graph: Graph) -> list[tuple[type[Op], Limits | None]]:
    return [(type(op), getattr(op, "limits", None)) for op in graph.ops]


@pytest.mark.parametrize("relu", [False, True])
def test_a_clip_goes_into_the_convolution_and_the_pool_behind_it_too(relu: bool) -> None:
    graph = simplify(chain(conv(relu=relu), clip(-1, 6), pool()), passes=CLIP_PASSES)
    (op,) = graph.ops
    assert isinstance(op, Conv)
    assert (op.relu, op.pool, op.limits) == (False, True, (0.0 if relu else -1.0, 6.0))
    assert op.names == ("v1", "v2", "v3")
    behind = fuse_clip(chain(conv(pool=True), clip(-1, 6)))
    assert found(behind) == [(Conv, (-1.0, 6.0))]  # a maximum keeps the order


@pytest.mark.parametrize("name", OTHERS)
def test_a_clip_goes_into_whatever_has_an_activation(name: str) -> None:
    (op,) = fuse_clip(chain(OTHERS[name], clip(-2, 3))).ops
    assert op.limits == (-2.0, 3.0)  # type: ignore[attr-defined]
    assert op.y == "v2"


def test_clips_behind_each_other_are_one() -> None:
    for makers, limits in (
        ((clip(-1, 6), clip(-2, 3)), (-1.0, 3.0)),
        ((clip(-3, 1), clip(-2, 3, relu=True)), (0.0, 1.0)),
        ((clip(-1, 6, relu=True), clip(-2, 3)), (0.0, 3.0)),
    ):
        assert found(fuse_clip(chain(conv(), *makers))) == [(Conv, limits)]
        (op,) = fuse_clip(chain(*makers)).ops
        assert isinstance(op, Clip)
        assert op.range == limits
    (op,) = fuse_clip(chain(Relu, clip(-2, 3))).ops
    assert isinstance(op, Clip)
    assert op.range == (0.0, 3.0)


@pytest.mark.parametrize(
    "graph",
    [
        chain(conv(), clip(1, 6)),  # padded channels would not be 0
        chain(conv(), clip(-6, -1)),
        chain(pool("average"), clip(-1, 1)),
        chain(conv(), clip(-1, 1), outputs=("v1", "v2")),
        chain(conv(), lambda x, y, names: Clip(x, y, names, ("w", "w"))),
    ],
    ids=["above zero", "below zero", "a pool", "the value before is wanted", "computed limits"],
)
def test_other_clips_stay(graph: Graph) -> None:
    assert found(fuse_clip(graph)) == found(graph)
