"""simplify: each pass alone, then random chains: fewer ops, the same values, every requested output kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.onnx_models import Model, inner_values, onnxruntime_values, random_input
from tests.support.reference import evaluate
from tests.support.selection import examples
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, BatchNorm, Conv, Flatten, Op, Pool, Relu, Softmax
from vgg16gpu.compiler.graph.passes import fuse_max_pool, fuse_relu, simplify
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.onnx.load import load

SHAPE = (2, 3, 6, 6)
WINDOW = Window((3, 3), pads=Pads(1, 1, 1, 1))

Maker = Callable[[str, str], Op]


def weights(*shape: int) -> Array:
    return random_input(shape, seed=sum(shape))


def conv(x: str, y: str, channels: int = 3) -> Conv:
    return Conv(x, y, (y,), weights(4, channels, 3, 3), weights(4), WINDOW)


def norm(x: str, y: str) -> BatchNorm:
    return BatchNorm(x, y, (y,), weights(4), weights(4) + 1, weights(4) - 1, np.abs(weights(4)) + np.float32(0.5), 1e-3)


def relu(x: str, y: str) -> Relu:
    return Relu(x, y, (y,))


def pool(x: str, y: str) -> Pool:
    return Pool(x, y, (y,), "max", MAX_POOL_2X2)


def flatten(x: str, y: str) -> Flatten:
    return Flatten(x, y, (y,))


def graph(*ops: Op, outputs: Sequence[str] | None = None, shape: tuple[int | None, ...] = SHAPE) -> Graph:
    return Graph(GraphInput("x", shape), ops, tuple(outputs or [ops[-1].y]))


def chain(*makers: Maker, outputs: Sequence[str] | None = None) -> Graph:
    """x -> a -> b -> c ..."""
    names = "xabcdefgh"
    return graph(*(make(names[i], names[i + 1]) for i, make in enumerate(makers)), outputs=outputs)


def check_same(before: Graph, after: Graph) -> None:
    """Same outputs, same values for every value that is left."""
    x = random_input([dim or 2 for dim in before.input.shape])
    expected, got = evaluate(before, x), evaluate(after, x)
    assert after.outputs == before.outputs
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert set(before.outputs) <= set(got)
    assert infer_shapes(after, x.shape) == {name: value.shape for name, value in got.items()}


# Folding and fusing


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: replace(pool(x, y), kind="average"),
        lambda x, y: replace(pool(x, y), window=Window((3, 3), (2, 2))),
        lambda x, y: replace(pool(x, y), window=Window((2, 2))),
        lambda x, y: replace(pool(x, y), window=Window((2, 2), (2, 2), Pads(1, 0, 0, 0))),
    ],
)
def test_other_pools_stay(other: Maker) -> None:
    before = chain(conv, other)
    assert fuse_max_pool(before).ops == before.ops


def test_max_pool_goes_into_the_convolution_after_its_relu_or_directly() -> None:
    for before in (chain(conv, relu, pool), chain(conv, pool), chain(conv, pool, relu)):
        result = fuse_max_pool(fuse_relu(before))
        assert isinstance(result.ops[0], Conv)
        assert result.ops[0].pool
        check_same(before, result)
        check_same(before, fuse_relu(result))


@pytest.mark.parametrize("chained", [(conv, norm), (conv, relu), (conv, pool), (flatten, relu)])
def test_outputs_kept_and_shared_values_are_never_swallowed(chained: tuple[Maker, ...]) -> None:
    plain = chain(*chained)
    assert len(simplify(plain, keep={"a"}).ops) == 2
    assert len(simplify(replace(plain, outputs=("a", "b"))).ops) == 2
    shared = graph(
        *plain.ops, Softmax("a", "s", ("s",)) if chained[0] is flatten else relu("a", "s"), outputs=["b", "s"]
    )
    assert "a" in {op.y for op in simplify(shared).ops}
    check_same(shared, simplify(shared))


# Random models


@st.composite
def models(draw: st.DrawFn) -> tuple[Model, list[str]]:
    """A random network of supported nodes and the outputs asked of it."""
    model = Model(("n" if draw(st.booleans()) else 2, 2, 7, 6), seed=draw(st.integers(0, 99)))
    maps = {"input": 2}  # value -> channels
    for index in range(draw(st.integers(1, 9))):
        # Mostly the newest value, so that there are long chains to fuse, sometimes an older one: a branch.
        x = draw(st.sampled_from(list(maps)[-1:] * 4 + list(maps)))
        y, channels = f"v{index}", maps[x]
        kind = draw(st.sampled_from(["conv", "norm", "relu", "pool", "dropout", "average", "one"]))
        if kind == "conv":
            filters = draw(st.integers(1, 3))
            model.conv(x, y, channels, filters, draw(st.sampled_from([1, 3])))
            channels = filters
        elif kind == "norm":
            model.batch_norm(x, y, channels)
        elif kind == "pool" and not any(node.op_type == "MaxPool" for node in model.nodes):
            model.node("MaxPool", [x], y, kernel_shape=[2, 2], strides=[2, 2])
        elif kind == "one":
            model.node("AveragePool", [x], y, kernel_shape=[1, 1])
        elif kind == "average":
            model.node("AveragePool", [x], y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        else:
            model.node("Dropout" if kind == "dropout" else "Relu", [x], y)
        maps[y] = channels
    if draw(st.booleans()):
        _head(draw, model, list(maps)[-1])
    inner = inner_values(model)
    outputs = draw(st.lists(st.sampled_from(inner), min_size=1, max_size=len(inner), unique=True))
    return model, outputs


def _head(draw: st.DrawFn, model: Model, x: str) -> None:
    """Flatten and fully connected layers on a 7x6 or a pooled 3x3 map."""
    with tempfile.TemporaryDirectory() as folder:
        shapes = infer_shapes(load(model.save(Path(folder) / "m.onnx", [x])), (2, 2, 7, 6))
    features = int(np.prod(shapes[x][1:]))
    model.node("Flatten", [x], "flat")
    model.node("Flatten", ["flat"], "flat_again")
    model.gemm(draw(st.sampled_from(["flat", "flat_again"])), "fc", features, 4)
    model.node(draw(st.sampled_from(["Relu", "Softmax"])), ["fc"], "end")


@examples(60)
@given(models())
def test_random_models_keep_their_values_and_outputs(case: tuple[Model, list[str]]) -> None:
    model, outputs = case
    with tempfile.TemporaryDirectory() as folder:
        path = model.save(Path(folder) / "m.onnx")
        loaded = load(path, outputs)
        result = simplify(loaded)
        x = random_input((2, 2, 7, 6))
        expected = onnxruntime_values(path, x, inner_values(model))
    check_same(loaded, result)
    values = evaluate(result, x)
    assert result.outputs == tuple(outputs)
    for name in values.keys() - {"input"}:
        np.testing.assert_allclose(values[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
    for op in result.ops:
        assert op.names[-1] == op.y
        assert not set(op.names[:-1]) & set(outputs)
    computed = [name for op in result.ops for name in op.names]
    assert len(computed) == len(set(computed))
    again = simplify(result)
    assert [(op.names, op.x, op.y) for op in again.ops] == [(op.names, op.x, op.y) for op in result.ops]
