"""compiler/graph/gradient.py: graphs of gradients, in float64, against differences of the model itself."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import Array64, compute
from tests.support.kernel_harness import normal, seeded
from vgg16gpu.compiler.graph.gradient import gradient_graph
from vgg16gpu.compiler.graph.gradient_ops import _MADE, dgrad_conv_weight
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    AxisSoftmax,
    BatchNorm,
    Conv,
    Flatten,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Identity,
    Op,
    Pool,
    Relu,
    Reshape,
    Shape,
    Softmax,
    Transpose,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.errors import ModelError

RANDOM = seeded("gradient")
STEP = 1e-6


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed the numbers of each test: a sum of others may be so near to 0 that its rounding is more than allowed."""
    monkeypatch.setitem(globals(), "RANDOM", seeded("gradient"))


WINDOWS = {
    "3x3-same": Window((3, 3), pads=Pads(1, 1, 1, 1)),
    "3x3-valid": Window((3, 3)),
    "1x1": Window((1, 1)),
    "1x1-padded": Window((1, 1), pads=Pads(2, 1, 0, 3)),
    "2x3-one-sided": Window((2, 3), pads=Pads(1, 0, 0, 2)),
    "5x5-padded-wide": Window((3, 3), pads=Pads(4, 3, 4, 3)),
    "strided": Window((3, 3), (2, 2), Pads(1, 1, 1, 1)),
    "strided-rest": Window((2, 2), (3, 2)),
    "strided-padded-wide": Window((2, 3), (2, 3), Pads(3, 0, 2, 4)),
}
GENERAL_WINDOWS = {
    "dilated": Window((3, 3), pads=Pads(2, 2, 2, 2), dilations=(2, 2)),
    "dilated-strided": Window((2, 3), (3, 2), Pads(1, 0, 0, 2), (2, 3)),
    "same-upper": Window((3, 2), (2, 2), same="upper"),
    "same-lower": Window((4, 3), (1, 2), same="lower"),
}


def graph_of(*ops: Op, outputs: tuple[str, ...] = ("y",), constants: Mapping[str, Any] | None = None) -> Graph:
    return Graph(GraphInput("x", (None,)), ops, outputs, (), constants or {})


def gradient(graph: Graph, x: Array64, cotangents: list[Array64]) -> Array64:
    """By the graph of the gradient, in float64."""
    found = gradient_graph(graph, x.shape)
    given = {"x": x, **dict(zip(found.cotangents, cotangents, strict=True))}
    (name,) = found.graph.outputs
    result = compute(found.graph, {item.name: given[item.name] for item in found.graph.inputs})[name]
    assert result.shape == x.shape
    return result


def check(graph: Graph, shape: Shape, x: Array64 | None = None) -> None:
    """The gradient in random directions is what central differences give."""
    x = normal(RANDOM, *shape).astype(np.float64) if x is None else x
    shapes = infer_shapes(graph, shape)
    cotangents = [normal(RANDOM, *shapes[name]).astype(np.float64) for name in graph.outputs]

    def loss(at: Array64) -> float:
        values = compute(graph, {"x": at})
        return sum(float((values[name] * c).sum()) for name, c in zip(graph.outputs, cotangents, strict=True))

    found = gradient(graph, x, cotangents)
    for _ in range(4):
        direction = normal(RANDOM, *shape).astype(np.float64)
        difference = (loss(x + STEP * direction) - loss(x - STEP * direction)) / (2 * STEP)
        assert (found * direction).sum() == pytest.approx(difference, rel=1e-6, abs=1e-7)


def conv(x: str, y: str, channels: tuple[int, int], window: Window, **options: Any) -> Conv:
    weight, bias = normal(RANDOM, *channels, *window.kernel), normal(RANDOM, channels[0])
    return Conv(x, y, (y,), weight, bias, window, **options)


@pytest.mark.parametrize("size", [(7, 9), (8, 8)], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_convolutions(window: str, size: tuple[int, int]) -> None:
    check(graph_of(conv("x", "y", (5, 3), WINDOWS[window])), (2, 3, *size))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("window", GENERAL_WINDOWS)
def test_general_convolutions(window: str, group: int) -> None:
    weight = normal(RANDOM, 6, 4 // group, *GENERAL_WINDOWS[window].kernel)
    op = GeneralConv("x", "y", ("y",), ("w",), GENERAL_WINDOWS[window], group, relu=True)
    check(graph_of(op, constants={"w": weight}), (2, 4, 9, 8))


@pytest.mark.parametrize("pool", [False, True])
def test_convolution_relu_and_pool_in_one(pool: bool) -> None:
    check(graph_of(conv("x", "y", (5, 3), WINDOWS["3x3-same"], relu=True, pool=pool)), (2, 3, 7, 8))


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pools(kind: Any) -> None:
    check(graph_of(Pool("x", "y", ("y",), kind, Window((3, 2), (2, 2), Pads(1, 0, 1, 1)))), (2, 3, 7, 8))
    check(graph_of(GlobalPool("x", "y", ("y",), kind)), (2, 3, 5, 4))


def test_what_stands_around_convolutions() -> None:
    vectors = [normal(RANDOM, 3) for _ in range(3)]
    variance = abs(normal(RANDOM, 3)) + 0.5
    check(graph_of(BatchNorm("x", "y", ("y",), *vectors, variance, 1e-3)), (2, 3, 4, 5))
    parameters = dict(zip("smbv", (*vectors, variance), strict=True))
    check(graph_of(GeneralBatchNorm("x", "y", ("y",), tuple("smbv"), relu=True), constants=parameters), (2, 3, 4))
    check(graph_of(Relu("x", "y", ("y",))), (3, 4))
    check(graph_of(Identity("x", "y", ("y",))), (3, 4))
    check(graph_of(Transpose("x", "y", ("y",), (0, 2, 3, 1))), (2, 3, 4, 5))
    check(graph_of(Reshape("x", "y", ("y",), (0, -1, 2))), (2, 3, 4))
    check(graph_of(Flatten("x", "y", ("y",))), (2, 3, 2, 2))
    check(graph_of(Softmax("x", "y", ("y",))), (3, 5))


@pytest.mark.parametrize("flattens", [False, True])
def test_products_with_a_matrix(flattens: bool) -> None:
    weight, bias = normal(RANDOM, 6, 24), normal(RANDOM, 6)
    op = Gemm("x", "y", ("y",), weight, bias, relu=True, flattens=flattens)
    check(graph_of(op), (3, 4, 2, 3) if flattens else (3, 24))


@pytest.mark.parametrize("function", ["add", "sub", "mul"])
def test_arithmetic_of_two_branches(function: Any) -> None:
    """A value that two ops read: what they hand back is added up."""
    branches = (
        conv("x", "a", (3, 3), WINDOWS["3x3-same"], relu=True),
        conv("a", "b", (3, 3), WINDOWS["3x3-same"]),
        Arithmetic("a", "c", ("c",), ("b",), relu=True, function=function),
        Arithmetic("c", "y", ("y",), ("k",), function="mul"),
    )
    check(graph_of(*branches, constants={"k": normal(RANDOM, 3, 1, 1)}), (2, 3, 5, 6))


def test_division_by_constants_and_a_constant_less_a_value() -> None:
    constants = {"k": abs(normal(RANDOM, 3, 1, 1)) + 1}
    check(graph_of(Arithmetic("x", "y", ("y",), ("k",), function="div"), constants=constants), (2, 3, 4, 4))
    check(graph_of(Arithmetic("k", "y", ("y",), ("x",), function="sub"), constants=constants), (2, 3, 4, 4))


def test_several_outputs_along_the_way() -> None:
    """Features: each output's gradient meets what comes from above, also where a pool follows."""
    window = WINDOWS["3x3-same"]
    ops = (
        conv("x", "a", (4, 3), window, relu=True),
        Pool("a", "p", ("p",), "max", MAX_POOL_2X2),
        conv("p", "b", (5, 4), window, relu=True),
        conv("b", "c", (5, 5), window, relu=True, pool=True),
    )
    check(graph_of(*ops, outputs=("a", "b", "c")), (2, 3, 9, 8))
    check(graph_of(*ops, outputs=("c", "p", "x")), (2, 3, 9, 8))
    check(graph_of(*ops, outputs=("b",)), (1, 3, 8, 8))


def test_zeros_of_a_relu_hand_nothing_on_and_the_first_maximum_gets_all() -> None:
    x = np.zeros((1, 1, 2, 2))
    assert not gradient(graph_of(Relu("x", "y", ("y",))), x, [np.ones((1, 1, 2, 2))]).any()
    pool = Pool("x", "y", ("y",), "max", MAX_POOL_2X2)
    np.testing.assert_array_equal(gradient(graph_of(pool), x, [np.ones((1, 1, 1, 1))])[0, 0], [[1, 0], [0, 0]])


def test_refusals_name_the_op_and_what_is_supported() -> None:
    with pytest.raises(ModelError, match=r"AxisSoftmax 'y': its gradient is not supported; supported are those of Ari"):
        gradient_graph(graph_of(AxisSoftmax("x", "y", ("y",), 1, 1)), (2, 3))
    two = Arithmetic("x", "y", ("y",), ("b",))
    pool = GlobalPool("x", "b", ("b",), "max")
    with pytest.raises(ModelError, match=r"add 'y': the gradient of 'b', \(1, 3, 1, 1\)"):
        gradient_graph(graph_of(pool, two), (1, 3, 4, 4))
    computed = GeneralConv("x", "y", ("y",), ("x",), WINDOWS["1x1"])
    with pytest.raises(ModelError, match="constant weights, and 'x' is computed"):
        gradient_graph(graph_of(computed), (1, 1, 1, 1))
    constant = Arithmetic("k", "y", ("y",), ("k",))
    with pytest.raises(ModelError, match="no output of the model depends on its input"):
        gradient_graph(graph_of(constant, constants={"k": normal(RANDOM, 3)}), (1, 3))


def test_weights_are_turned_once_whatever_sizes_are_planned():
    weight, matrix = normal(RANDOM, 4, 3, 3, 3), normal(RANDOM, 5, 4)
    ops = (
        Conv("x", "a", ("a",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1))),
        GlobalPool("a", "b", ("b",), "average"),
        Flatten("b", "c", ("c",)),
        Gemm("c", "y", ("y",), matrix, None),
    )
    graph = Graph(GraphInput("x", (None, 3, None, None)), ops, ("y",))

    def turned(size):
        found = gradient_graph(graph, (1, 3, size, size)).graph.ops
        weights = [op.weight for op in found if isinstance(op, Conv | Gemm)]
        return [each for each in weights if each is not weight and each is not matrix]

    first, second = turned(8), turned(9)
    assert len(first) == 2
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert len(_MADE) >= 2
    del first, second
    gc.collect()
    assert id(weight) not in _MADE
    assert id(matrix) not in _MADE


def test_an_array_in_the_place_of_another_is_turned_itself():
    made = []
    for _ in range(50):  # memory, and so identities, come again
        weight = normal(RANDOM, 2, 3, 3, 3)
        made.append(dgrad_conv_weight(weight))
        np.testing.assert_array_equal(made[-1], weight[:, :, ::-1, ::-1].swapaxes(0, 1))
        del weight
