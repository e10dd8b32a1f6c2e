"""transpose_first.py: what Keras' files compute on (N, H, W, C) comes after their Transpose, with the same values."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import Model, onnxruntime_values, random_input
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Arithmetic, Clip, Concat, Gather, Identity, Slice, Transpose
from vgg16gpu.compiler.graph.passes import gather_slices, transpose_first

PERMUTATION = (0, 3, 1, 2)
HEIGHT, WIDTH = 6, 5


def constant(model: Model, name: str, values: Any) -> str:
    return model.constant(name, np.asarray(values, np.float32))


def rescaling(model: Model) -> str:
    x = model.node("Mul", ["input", constant(model, "scale", 1 / 255)], "scaled")
    return model.node("Add", [x, constant(model, "offset", [[[[0.0]]]])], "shifted")


def normalization(model: Model) -> str:
    x = model.node("Sub", ["input", constant(model, "mean", np.reshape([110, 105, 99], (1, 1, 1, 3)))], "centred")
    return model.node("Mul", [x, constant(model, "factor", [0.1, 0.2, 0.3])], "normal")


def caffe(model: Model) -> str:
    parts = []
    for channel in (2, 1, 0):
        ends = ([channel], [channel + 1], [3])
        names = [model.constant(f"{channel}.{i}", np.array(value)) for i, value in enumerate(ends)]
        parts.append(model.node("Slice", ["input", *names], f"channel{channel}"))
    x = model.node("Concat", parts, "bgr", axis=3)
    return model.node("Add", [x, constant(model, "mean", [-103.939, -116.779, -123.68])], "centred")


def backwards(model: Model) -> str:
    ends = {"starts": [-1], "ends": [-(2**31)], "axes": [3], "steps": [-1]}
    names = [model.constant(key, np.array(value)) for key, value in ends.items()]
    return model.node("Slice", ["input", *names], "bgr")


def gathered(model: Model) -> str:
    return model.node("Gather", ["input", model.constant("order", np.array([2, 1, 0]))], "bgr", axis=3)


def a_map(model: Model) -> str:
    values = np.random.default_rng(0).random((HEIGHT, WIDTH, 3))
    return model.node("Div", [constant(model, "one", values + 1), "input"], "quotient")


def by_column(model: Model) -> str:
    return model.node("Mul", ["input", constant(model, "columns", np.arange(1, WIDTH + 1)[:, None])], "columns.scaled")


FORMS = [rescaling, normalization, caffe, backwards, gathered, a_map, by_column]


def saved(tmp_path, form):
    model = Model(("n", HEIGHT, WIDTH, 3))
    x = model.node("Transpose", [form(model)], "nchw", perm=list(PERMUTATION))
    model.node("Flatten", [model.node("GlobalAveragePool", [model.conv(x, "conv", 3, 4)], "average")], "y")
    return model.save(tmp_path / "m.onnx", ["y"])


@pytest.mark.every_case
@pytest.mark.parametrize("form", FORMS)
def test_pictures_fit_and_scores_are_onnxruntimes(tmp_path, form):
    path = saved(tmp_path, form)
    pixels = np.random.default_rng(1).integers(1, 256, (3, HEIGHT, WIDTH, 3), dtype=np.uint8)
    numbers = pixels.astype(np.float32)
    expected = onnxruntime_values(path, numbers)["y"]
    with Engine(path, device="cpu", batch=2, mean=[0] * 3, std=[1 / 255] * 3) as engine:
        assert engine.graph.input == GraphInput("input", (None, 3, HEIGHT, WIDTH), channels_last=True)
        assert not any(isinstance(op, Transpose | Slice | Concat) for op in engine.graph.ops) or form is backwards
        assert score_error(engine.run(numbers), expected).max() < 1e-5
        assert score_error(engine.run(pixels), expected).max() < 1e-5


def test_layers_are_compared_all_the_same(tmp_path):
    from click.testing import CliRunner

    from vgg16gpu.cli import cli

    path = saved(tmp_path, normalization)
    np.save(tmp_path / "x.npy", random_input((1, HEIGHT, WIDTH, 3)))
    arguments = ["testbench", "--model", path, "--device", "cpu", "--layers", "--inputs", tmp_path / "x.npy"]
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "nchw" in result.stdout


X, Y = GraphInput("x", (2, 4, 4, 3)), ("y",)
TURN = Transpose("m", "y", Y, PERMUTATION)
ONE = {"c": np.ones((1, 1, 1, 1, 3), np.float32)}


@pytest.mark.parametrize(
    ("ops", "outputs"),
    [
        ((Identity("x", "m", ("m",)), TURN), Y),
        ((Arithmetic("x", "m", ("m",), ("x",), "mul"), TURN), Y),  # with itself
        ((Arithmetic("x", "m", ("m",), ("c",), "mul"), TURN), Y),  # of five dimensions
        ((Clip("x", "m", ("m",), low=0.0, high=1.0), TURN), ("m", "y")),
        ((Gather("x", "m", ("m",), 2, np.array([0, 1, 2, 3])), TURN), Y),  # rows
        ((Clip("x", "m", ("m",), low=0.0, high=1.0), Transpose("m", "y", Y, (0, 1, 3, 2))), Y),
    ],
)
@pytest.mark.every_case
def test_what_cannot_be_turned_stays(ops, outputs):
    graph = Graph(X, ops, outputs, constants=ONE)
    assert transpose_first(graph) is graph


def test_time_grows_with_the_number_of_ops_and_no_faster():
    """A file of some hundred KB holds thousands of ops: what looks at all of them for each of them takes minutes."""
    count, arrays = 5_000, {"c": np.arange(3, dtype=np.float32)}
    values = ["input", *(f"v{i}" for i in range(count))]
    ops = [Arithmetic(x, y, (y,), ("c",)) for x, y in pairwise(values)]
    ops.append(Transpose(values[-1], "y", ("y",), PERMUTATION))
    graph = Graph(GraphInput("input", (1, HEIGHT, WIDTH, 3)), tuple(ops), ("y",), constants=arrays)
    started = time.process_time()
    found = transpose_first(gather_slices(graph))
    assert time.process_time() - started < 1
    assert len(found.ops) == count + 1
    assert set(found.constants) == {"c", "c.channels_first"}
