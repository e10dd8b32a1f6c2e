"""compiler/quantization/scheme.py: which values become integers, weights as integers, and what is refused."""

import numpy as np
import pytest

from tests.support.random_graphs import SAME
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Conv, Flatten, Gemm, Identity, Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.compiler.quantization.scheme import (
    Scale,
    quantise,
    quantise_op,
    quantised_inputs,
    stored_scales,
    weight_integers,
)
from vgg16gpu.errors import ModelError

RANDOM = np.random.default_rng(3)


def conv(x, y, **options):
    weight = RANDOM.standard_normal((4, 4, 3, 3)).astype(np.float32)
    return Conv(x, y, (y,), weight, np.zeros(4, np.float32), SAME, **options)


def gemm(x, y, features=64, **options):
    weight = RANDOM.standard_normal((4, features)).astype(np.float32)
    return Gemm(x, y, (y,), weight, np.zeros(4, np.float32), **options)


def graph(*ops, outputs=None):
    return Graph(GraphInput("x", (None, 4, 8, 8)), ops, outputs or (ops[-1].y,))


def scales_of(net):
    """A scale for every value that needs one, each with a step of its own."""
    return {name: Scale(float(i + 1), signed) for i, (name, signed) in enumerate(quantised_inputs(net).items())}


def stored(net):
    """How values are stored, by the type of their element; and the scales behind it."""
    found = stored_scales(net, scales_of(net))
    return {name: scale.element if scale else "float" for name, scale in found.items()}, found


@pytest.mark.parametrize("shape", [(5, 7, 3, 3), (6, 40)])
def test_weights_are_rounded_per_output_channel(shape):
    weight = RANDOM.standard_normal(shape).astype(np.float32)
    weight[1] *= 1000
    integers, steps = weight_integers(weight)
    assert integers.dtype == np.int8
    assert integers.shape == shape
    rows, largest = integers.reshape(len(weight), -1), np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    assert (np.abs(rows).max(axis=1) == 127).all()
    np.testing.assert_array_equal(steps, largest / np.float32(127))
    error = np.abs(rows * steps[:, None].astype(np.float64) - weight.reshape(len(weight), -1))
    assert (error <= 0.5 * steps[:, None] * (1 + 1e-5)).all()


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e38])
def test_extreme_weights(value):
    weight = np.full((1, 3), value, np.float32)
    integers, steps = weight_integers(weight)
    assert steps[0] > 0
    assert (integers == (127 if value > 1e-36 else round(float(weight[0, 0]) / float(steps[0])))).all()


def test_a_chain_is_integers_from_the_input_to_the_scores():
    net = graph(
        conv("x", "a", relu=True),
        conv("a", "b", relu=True, pool=True),
        gemm("b", "c", relu=True, flattens=True),
        gemm("c", "d", 4),
        gemm("d", "e", 4),
    )
    assert quantised_inputs(net) == {"x": True, "a": False, "b": False, "c": False, "d": True}
    kinds, _ = stored(net)
    assert kinds == {"x": "s8", "a": "u8", "b": "u8", "c": "u8", "d": "s8", "e": "float"}
    ops = quantise(net, scales_of(net))
    assert set(ops) == {"a", "b", "c", "d", "e"}
    assert ops["e"].y is None
    assert ops["b"].x == ops["a"].y == scales_of(net)["a"]
    np.testing.assert_array_equal(ops["b"].dequant, np.float32(2) * weight_integers(net.ops[1].weight)[1])


def test_max_pool_flatten_and_identity_carry_the_integers_of_their_reader():
    net = graph(
        conv("x", "a", relu=True),
        Pool("a", "b", ("b",), "max", MAX_POOL_2X2),
        Identity("b", "c", ("c",)),
        Flatten("c", "d", ("d",)),
        gemm("d", "e"),
    )
    kinds, found = stored(net)
    assert kinds == {"x": "s8", "a": "u8", "b": "u8", "c": "u8", "d": "u8", "e": "float"}
    assert found["a"] == found["d"] == scales_of(net)["d"]


def test_readers_that_agree_share_integers_and_others_get_float32():
    shared = graph(conv("x", "a", relu=True), conv("a", "b"), conv("a", "c"), outputs=("b", "c"))
    assert stored(shared)[0]["a"] == "u8"
    pooled = Pool("a", "p", ("p",), "max", MAX_POOL_2X2)
    split = graph(conv("x", "a", relu=True), pooled, conv("a", "b"), conv("p", "c"), outputs=("b", "c"))
    kinds, _ = stored(split)
    assert (kinds["a"], kinds["p"]) == ("float", "float")  # two steps are wanted of `a`
    averaged = Pool("a", "p", ("p",), "average", MAX_POOL_2X2)
    mixed = graph(conv("x", "a", relu=True), averaged, conv("a", "b"), outputs=("b", "p"))
    assert stored(mixed)[0]["a"] == "float"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_and_biases_that_are_not_finite_are_refused(value):
    for place in ("weight", "bias"):
        op = conv("x", "conv1")
        getattr(op, place)[(2, 1, 0, 2) if place == "weight" else 1] = value
        with pytest.raises(ModelError, match=r"Conv 'conv1'.*fp32"):
            quantise_op(op, Scale(1.0, signed=True), None)


def test_weights_too_large_for_their_scale_are_refused():
    op = Gemm("x", "fc", ("fc",), np.full((1, 3), 3e38, np.float32), None)
    with pytest.raises(ModelError, match=r"Gemm 'fc'.*huge"):
        quantise_op(op, Scale(200.0, signed=True), None)


def test_sums_that_could_leave_int32_are_refused():
    weight = np.ones((2, 70_000), np.float32)
    weight[:, 1::4] = -1  # the worst input meets each weight with its sign
    op = Gemm("x", "fc", ("fc",), weight, None)
    with pytest.raises(ModelError, match="Gemm 'fc': a sum of 70,000 products could reach 2,266,950,000"):
        quantise_op(op, Scale(1.0, signed=False), None)
    quantise_op(op, Scale(1.0, signed=True), None)  # half as large
    weight[:, ::2] /= 100  # rounds to 1: the sum of the real weights decides, not their number
    quantise_op(op, Scale(1.0, signed=False), None)
