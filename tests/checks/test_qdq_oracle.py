"""The two judges of int8: the integer reference of the tests, and onnxruntime's quantised form."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tests.support.graph_reference import compute
from tests.support.quantised_reference import evaluate, fmaf, integers, sums
from tests.support.random_graphs import SAME, graphs
from tests.support.selection import examples
from vgg16gpu.checks.accuracy import layer_error, score_error
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.checks.qdq_oracle import QuantisedOracle, qdq_model
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Clip, Conv, Flatten, Gemm, GlobalPool, Pool, Reshape, Transpose
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.quantization.scheme import Scale, quantise, quantise_op, quantised_inputs
from vgg16gpu.errors import ModelError


def scales_from(graph, x):
    """Scales that clip nothing, from the float64 reference."""
    values = reference.evaluate(graph, x)
    limits = {True: 127, False: 255}
    return {
        name: Scale(float(np.float32(np.abs(values[name]).max() / limits[signed] or 1.0)), signed)
        for name, signed in quantised_inputs(graph).items()
    }


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def exact_fmaf(a, b, c):
    """a * b + c in rationals, rounded to float32 once, half to even."""
    value = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    guess = np.float32(float(value))
    candidates = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(candidates, key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.uint32)) & 1))


def test_fmaf_rounds_once():
    random = np.random.default_rng(0)
    a = random.integers(-(2**31), 2**31, 3000).astype(np.float32)
    b = (random.uniform(1, 2, 3000) * 2.0 ** random.integers(-20, 3, 3000)).astype(np.float32)
    c = np.where(
        random.random(3000) < 0.5, -a * b, random.standard_normal(3000) * 2.0 ** random.integers(-40, 40, 3000)
    )
    c = c.astype(np.float32)
    expected = np.array([exact_fmaf(*row) for row in zip(a, b, c, strict=True)])
    np.testing.assert_array_equal(fmaf(a, b, c), expected)
    # The sum ends half-way between two float32, but for a bit that float64 loses: rounding twice goes wrong.
    near = np.float32(2**24 + 2), np.float32(1 + 2**-23), np.float32(2.0**-40)
    halfway = np.float32(1), np.float32(1 + 2**-23), np.float32(2**-24 * (1 + 2**-23))
    for row in (near, halfway, (np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(-(2.0**-60)))):
        assert fmaf(*row) == exact_fmaf(*row)


def test_integers_saturate_and_round_half_to_even():
    x = np.array([-1e30, -200, -1.5, -0.5, 0.5, 1.5, 2.5, 127.5, 300, np.inf, -np.inf, np.nan], np.float32)
    signed = [-128, -128, -2, 0, 0, 2, 2, 127, 127, 127, -128, 0]
    unsigned = [0, 0, 0, 0, 0, 2, 2, 128, 255, 255, 0, 0]
    np.testing.assert_array_equal(integers(x, Scale(1.0, signed=True)), np.array(signed, np.int8))
    np.testing.assert_array_equal(integers(x, Scale(1.0, signed=False)), np.array(unsigned, np.uint8))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    "window", [SAME, Window((2, 3), (2, 1), Pads(0, 1, 1, 2)), Window((1, 1)), Window((3, 3), (2, 2))]
)
def test_sums_are_those_of_int64(window, signed):
    op = Conv("x", "y", ("y",), normal(5, 7, *window.kernel), None, window)
    quantised = quantise_op(op, Scale(1.0, signed), None)
    low, high = Scale(1.0, signed).limits
    x = np.random.default_rng(1).integers(low, high + 1, (2, 7, 9, 8)).astype(np.int8 if signed else np.uint8)
    views = reference.windows(x.astype(np.int64), window, 0)
    expected = np.einsum("nchwij,ocij->nohw", views, quantised.weight.astype(np.int64))
    found = sums(op, quantised, x)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def small_net():
    """A net of every kind of step that a VGG has, some of it unfused."""
    pool = Pool("b", "p", ("p",), "max", Window((3, 3), (2, 2), Pads(1, 1, 1, 1)))
    ops = (
        Conv("x", "a", ("a",), normal(8, 3, 3, 3), normal(8), SAME, relu=True),
        Conv("a", "b", ("b",), normal(16, 8, 3, 3), normal(16), SAME, relu=True, pool=True),
        pool,
        Conv("p", "c", ("c",), normal(6, 16, 3, 3), None, SAME),
        Pool("c", "q", ("q",), "average", MAX_POOL_2X2),
        Gemm("q", "d", ("d",), normal(20, 24), normal(20), relu=True, flattens=True),
        Gemm("d", "e", ("e",), normal(10, 20), normal(10)),
    )
    return Graph(GraphInput("x", (None, 3, 16, 16)), ops, ("e",))


def test_the_reference_stores_what_the_scales_say():
    net, x = small_net(), normal(2, 3, 16, 16)
    run = evaluate(net, scales_from(net, x), x)
    kinds = {name: array.dtype.name for name, array in run.stored.items()}
    assert kinds == {
        **{"x": "int8", "a": "uint8", "b": "uint8", "p": "uint8"},
        **{"c": "float32", "q": "float32", "d": "uint8", "e": "float32"},
    }
    assert set(run.sums) == {"a", "b", "c", "d", "e"}
    assert run.sums["b"].shape == (2, 16, 16, 16)  # before its pool
    values = reference.evaluate(net, x)
    assert layer_error(run.stored["e"], values["e"]) < 0.05
    scale = scales_from(net, x)["p"]
    assert layer_error(run.stored["p"] * scale.step, values["p"]) < 0.02


def test_onnxruntime_rounds_like_the_reference():
    """Layer by layer bytes differ by one at most, and seldom; then the scores are close, too."""
    net, x = small_net(), normal(3, 3, 16, 16)
    scales = scales_from(net, x)
    run = evaluate(net, scales, x)
    theirs = _integer_values(qdq_model(net, scales), [name for name in scales if name != "q"], x)
    for name, expected in theirs.items():
        found = run.stored[name].reshape(expected.shape).astype(np.int32)
        difference = np.abs(found - expected.astype(np.int32))
        assert difference.max() <= 1, name
        assert (difference > 0).mean() < 0.02, name
    error = score_error(QuantisedOracle(net, scales).scores(x), run.stored["e"])
    assert error.max() < 0.01


def _integer_values(model, names, x):
    outputs = [f"{name}/integers" for name in names]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    session = open_session(model.SerializeToString())
    return dict(zip(names, session.run(outputs, {"x": x}), strict=True))


def test_the_quantised_form_is_valid_onnx_and_keeps_huge_biases():
    net, x = small_net(), normal(2, 3, 16, 16)
    net.ops[-1].bias[3] = 1e12  # beyond int32 in units of the sum
    model = qdq_model(net, scales_from(net, x))
    onnx.checker.check_model(model)
    assert model.graph.output[0].name == "e"
    scores = QuantisedOracle(net, scales_from(net, x)).scores(x)
    np.testing.assert_allclose(scores[:, 3], 1e12, rtol=1e-6)


def test_ops_without_weights_between_integers():
    ops = (
        Conv("x", "a", ("a",), normal(8, 3, 3, 3), normal(8), SAME, relu=True),
        Transpose("a", "t", ("t",), (0, 2, 3, 1)),
        Flatten("t", "f", ("f",)),
        Gemm("f", "g", ("g",), normal(8, 8 * 16), normal(8)),
        Reshape("g", "r", ("r",), (0, 2, 2, 2)),
        GlobalPool("r", "y", ("y",), "average"),
    )
    net, x = Graph(GraphInput("x", (None, 3, 4, 4)), ops, ("y",)), normal(2, 3, 4, 4)
    scales = {"x": Scale(0.03, signed=True), "f": Scale(0.1, signed=False)}
    with pytest.raises(ModelError, match=r"Reshape 'r': there is no quantised form .* another precision"):
        qdq_model(net, scales)
    for kept in (ops[:4], (ops[0], replace(ops[-1], x="a"))):
        net = replace(net, ops=kept, outputs=(kept[-1].y,))
        expected = compute(net, {"x": x})[net.outputs[0]].reshape(2, 8)
        assert score_error(QuantisedOracle(net, scales).scores(x).reshape(2, 8), expected).max() < 0.05


def test_clips_between_layers():
    """Compare a ReLU6's limits, and those of a file with zero points, which the kernels do not hold."""
    ops = (
        Conv("x", "a", ("a",), normal(8, 3, 3, 3), normal(8), SAME),
        Clip("a", "c", ("c",), low=-1.0, high=6.0, relu=True),
        Conv("c", "b", ("b",), normal(4, 8, 3, 3), normal(4), SAME),
        Clip("b", "y", ("y",), low=-3.0, high=7.0),
    )
    net, x = Graph(GraphInput("x", (None, 3, 4, 4)), ops, ("y",)), normal(2, 3, 4, 4)
    scales = {"x": Scale(0.03, signed=True), "c": Scale(6 / 255, signed=False)}
    (found,) = QuantisedOracle(net, scales).values(x[:1])
    expected = compute(net, {"x": x[:1]})["y"]
    assert (found.min(), found.max()) == (-3, 7)
    assert layer_error(found, expected) < 0.05


def _random_weights(*shape):
    return normal(*shape) / np.float32(max(np.prod(shape[1:]), 1) ** 0.5)


@examples(40)
@given(graphs(_random_weights), st.integers(0, 1000))
def test_random_graphs_lose_little_in_both(drawn, seed):
    net, shape = drawn
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    scales = scales_from(net, x)
    expected = reference.evaluate(net, x)
    run = evaluate(net, scales, x)
    assert set(quantise(net, scales)) == set(run.sums)
    # A value of few elements near zero may lose more than most: its error is judged by the steps behind it.
    depth = 1 + len(scales)
    for name in net.outputs:
        assert run.stored[name].dtype == np.float32
        assert np.abs(run.stored[name] - expected[name]).max() <= 0.05 * depth * np.abs(expected[name]).max() + 0.05
    if net.outputs[0] != net.input.name:
        scores = QuantisedOracle(net, scales).scores(x)
        first = run.stored[net.outputs[0]]
        assert np.abs(scores - first).max() <= 0.05 * depth * np.abs(first).max() + 0.05
