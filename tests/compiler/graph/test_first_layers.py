"""first_layers.py: what a network does first tells what it is given. One row a spelling, in files and in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import Model
from vgg16gpu import Engine
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.first_layers import assumed
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.io.preprocessing import Preprocess

CAFFE = [103.939, 116.779, 123.68]  # B, G, R
IMAGENET = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]
SUBTRACTS = "the file's first layers subtract "
DIVIDES = "the file's first layers divide by "


def broadcast(values: Any) -> Any:
    """A number, or one for each channel of (N, C, H, W)."""
    array = np.asarray(values, np.float32)
    return array.reshape(-1, 1, 1) if array.ndim else array


def network(tmp_path, steps, *, shape=("n", 3, 8, 8), classes=5):
    """What a file that begins with `steps` is assumed to need: (operator, constant), or a function of (model, x)."""
    model = Model(shape)
    x = "input"
    for index, step in enumerate(steps):
        if callable(step):
            x = step(model, x, f"step{index}")
        else:
            operator, value = step
            x = model.node(operator, [x, model.constant(f"constant{index}", broadcast(value))], f"step{index}")
    x = model.node("Flatten", [model.node("GlobalAveragePool", [model.conv(x, "conv", 3, 4)], "mean")], "flat")
    model.gemm(x, "y", 4, classes)
    graph = OnnxModel(model.save(tmp_path / "m.onnx")).graph()
    return assumed(graph, resolve_input_shape(graph, 1))


def batch_norm(mean, deviation):
    def add(model, x, y):
        variance = np.square(np.asarray(deviation, np.float32)) - np.float32(1e-5)
        values = {"scale": [1.2, 0.9, 1], "shift": [0.1, 0, -0.1], "mean": mean, "variance": variance}
        names = [model.constant(f"{y}.{key}", np.asarray(value, np.float32)) for key, value in values.items()]
        return model.node("BatchNormalization", [x, *names], y, epsilon=1e-5)

    return add


def bgr(model, x, y):
    """x[:, [2, 1, 0]]."""
    return model.node("Gather", [x, model.constant(f"{y}.order", np.array([2, 1, 0]))], y, axis=1)


def reversed_channels(model, x, y):
    """x[:, ::-1]."""
    ends = {"starts": [-1], "ends": [-(2**31)], "axes": [1], "steps": [-1]}
    names = [model.constant(f"{y}.{key}", np.array(value)) for key, value in ends.items()]
    return model.node("Slice", [x, *names], y)


def stacked(model, x, y):
    """Three channels, one by one, put together the other way round, as Keras' preprocess_input does."""
    parts = []
    for channel in (2, 1, 0):
        ends = ([channel], [channel + 1], [1])
        names = [model.constant(f"{y}.{channel}.{i}", np.array(value)) for i, value in enumerate(ends)]
        parts.append(model.node("Slice", [x, *names], f"{y}.{channel}"))
    return model.node("Concat", parts, y, axis=1)


def left(operator, value):
    """Constant first."""

    def add(model, x, y):
        return model.node(operator, [model.constant(f"{y}.left", broadcast(value)), x], y)

    return add


TORCHVISION = "the file says nothing"
TABLE = {
    # steps: preset, order, reason
    "nothing": ([], "torchvision", "rgb", TORCHVISION),
    "means of 0 to 255": ([("Sub", CAFFE[::-1])], "raw", "rgb", SUBTRACTS + "123.68, 116.779, 103.939"),
    "means from blue to red": ([("Sub", CAFFE)], "raw", "bgr", SUBTRACTS + "103.939, 116.779, 123.68"),
    "means of another set": ([("Sub", [120, 119, 121])], "raw", "rgb", SUBTRACTS + "120, 119, 121"),
    "turned, then blue to red": ([bgr, ("Sub", CAFFE)], "raw", "rgb", SUBTRACTS + "123.68, 116.779, 103.939"),
    "sliced backwards": ([reversed_channels, ("Sub", CAFFE)], "raw", "rgb", SUBTRACTS + "123.68, 116.779, 103.939"),
    "channel by channel": ([stacked, ("Sub", CAFFE)], "raw", "rgb", SUBTRACTS + "123.68, 116.779, 103.939"),
    "turned alone": ([bgr], "torchvision", "rgb", TORCHVISION),
    "means of 0 to 1": (
        [("Sub", IMAGENET), ("Div", DEVIATION)],
        "unit",
        "rgb",
        SUBTRACTS + "0.485, 0.456, 0.406 and divide by 0.229, 0.224, 0.225",
    ),
    "means of 0 to 1 from blue to red": (
        [("Add", [-0.406, -0.456, -0.485])],
        "unit",
        "bgr",
        SUBTRACTS + "0.406, 0.456, 0.485",
    ),
    "divided by 255": ([("Div", 255.0)], "raw", "rgb", DIVIDES + "255"),
    "Keras' Rescaling": ([("Mul", 1 / 255), ("Add", 0.0)], "raw", "rgb", DIVIDES + "255"),
    "Keras' Rescaling to -1..1": (
        [("Mul", 1 / 127.5), ("Add", -1.0)],
        "raw",
        "rgb",
        SUBTRACTS + "127.5 and divide by 127.5",
    ),
    "divided by 255, then normalised": (
        [("Div", 255.0), ("Sub", IMAGENET), ("Div", DEVIATION)],
        "raw",
        "rgb",
        SUBTRACTS + "123.675, 116.28, 103.53 and divide by 58.395, 57.12, 57.375",
    ),
    "from 0..1 to -1..1": ([("Mul", 2.0), ("Sub", 1.0)], "unit", "rgb", SUBTRACTS + "0.5 and divide by 0.5"),
    "from 0..1 to 0..255": ([("Mul", 255.0)], "unit", "rgb", DIVIDES + "0.00392157"),
    "from -1..1 to 0..1": ([("Add", 1.0), ("Div", 2.0)], "symmetric", "rgb", SUBTRACTS + "-1 and divide by 2"),
    "constants first": ([left("Mul", 1 / 255)], "raw", "rgb", DIVIDES + "255"),
    "one minus x": ([left("Sub", 1.0)], "torchvision", "rgb", TORCHVISION),
    "one through x": ([left("Div", 1.0)], "torchvision", "rgb", TORCHVISION),
    "times zero": ([("Mul", 0.0)], "torchvision", "rgb", TORCHVISION),
    "a sum of nothing known": ([("Add", 1000.0)], "torchvision", "rgb", TORCHVISION),
    "a product of ones": ([("Mul", 1.0)], "torchvision", "rgb", TORCHVISION),
    "BatchNormalization of 0 to 255": (
        [batch_norm([112, 109, 101], [60, 59, 61])],
        "raw",
        "rgb",
        "the file begins with a BatchNormalization of mean 112, 109, 101 and deviation 60, 59, 61",
    ),
    "BatchNormalization of 0 to 1": (
        [batch_norm([0.5, 0.25, 0.125], [0.25, 0.25, 0.25])],
        "unit",
        "rgb",
        "the file begins with a BatchNormalization of mean 0.5, 0.25, 0.125 and deviation 0.25",
    ),
    "BatchNormalization of -1 to 1": (
        [batch_norm([0, -0.125, -0.25], [0.5, 0.5, 0.5])],
        "symmetric",
        "rgb",
        "the file begins with a BatchNormalization of mean 0, -0.125, -0.25 and deviation 0.5",
    ),
    "BatchNormalization of Caffe's": (
        [batch_norm([1, -2, 4], [64, 64, 64])],
        "keras",
        "bgr",
        "the file begins with a BatchNormalization of mean 1, -2, 4 and deviation 64",
    ),
    "BatchNormalization of what is normalised": ([batch_norm([0, 0, 0], [1, 1, 1])], "torchvision", "rgb", TORCHVISION),
    "BatchNormalization behind Rescaling": (
        [("Div", 255.0), batch_norm([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])],
        "raw",
        "rgb",
        DIVIDES + "255",
    ),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.every_case
def test_what_is_assumed_and_why(tmp_path, name):
    steps, preset, order, reason = TABLE[name]
    found = network(tmp_path, steps)
    expected = Preprocess.named(preset).in_order(order)
    assert (found.mean, found.std, found.pixel_range) == (expected.mean, expected.std, expected.pixel_range)
    assert found.channel_order == order
    assert (found.fit, found.interpolation) == ("crop", "bilinear")  # channels first: as torchvision has it
    assert (found.origin.kind, found.origin.reason) == ("assumed", reason)


def keras(model, x, y):
    return model.node("Transpose", [x], y, perm=[0, 3, 1, 2])


def rescaling(model, x, y):
    scaled = model.node("Mul", [x, model.constant(f"{y}.scale", np.float32(1 / 255))], f"{y}.scaled")
    return keras(model, model.node("Add", [scaled, model.constant(f"{y}.zero", np.float32(0))], f"{y}.sum"), y)


@pytest.mark.parametrize(
    ("steps", "classes", "expected", "reason"),
    [
        ([keras], 10, Preprocess.named("unit"), "the file has its channels last, as Keras has them"),
        (
            [keras],
            1000,
            Preprocess.named("keras"),
            "the file has its channels last, as Keras has them, and 1000 classes, as in keras.applications",
        ),
        ([rescaling], 1000, Preprocess.named("raw"), DIVIDES + "255"),
        ([keras, ("Sub", CAFFE)], 10, Preprocess.named("raw").in_order("bgr"), SUBTRACTS + "103.939, 116.779, 123.68"),
    ],
)
def test_keras_stretches(tmp_path, steps, classes, expected, reason):
    found = network(tmp_path, steps, shape=("n", 8, 8, 3), classes=classes)
    assert found == expected
    assert found.fit == "stretch"
    assert found.origin.reason == reason


@pytest.mark.parametrize("read", ["branch", "output"])
def test_an_input_that_is_read_twice_tells_nothing(tmp_path, read):
    model = Model(("n", 3, 8, 8))
    half = model.node("Div", ["input", model.constant("c", np.float32(255))], "half")
    y = model.conv(half, "conv", 3, 3)
    outputs = ["half", "conv"]
    if read == "branch":
        outputs = [model.node("Add", [y, "input"], "sum")]
    graph = OnnxModel(model.save(tmp_path / "m.onnx", outputs)).graph()
    found = assumed(graph, (1, 3, 8, 8))
    assert (found.origin.reason == TORCHVISION) == (read == "branch")


def test_maps_of_constants_are_no_numbers_of_channels(tmp_path):
    model = Model((1, 3, 8, 8))
    x = model.node("Sub", ["input", model.constant("c", np.full((3, 8, 8), 100, np.float32))], "x")
    model.conv(x, "y", 3, 4)
    graph = OnnxModel(model.save(tmp_path / "m.onnx")).graph()
    assert assumed(graph, (1, 3, 8, 8)).origin.reason == TORCHVISION


@pytest.mark.parametrize("channels", [4, 2])
def test_padded_channels_are_no_longer_those_of_the_picture(tmp_path, channels):
    pytest.importorskip("onnxruntime")
    model = Model(("n", 3, 8, 8))
    model.node("Pad", ["input", model.constant("pads", np.array([0] * 5 + [channels - 3, 0, 0]))], "x")
    values = {key: np.linspace(0.2, 0.9, channels, dtype=np.float32) for key in ("scale", "shift", "mean", "variance")}
    model.node("BatchNormalization", ["x", *(model.constant(key, value) for key, value in values.items())], "norm")
    model.conv("norm", "y", channels, 4)
    path = model.save(tmp_path / "m.onnx")
    graph = OnnxModel(path).graph()
    assert assumed(graph, (1, 3, 8, 8)).origin.reason == TORCHVISION
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    (wanted,) = open_session(path).run(None, {"input": image})
    with Engine(path, device="cpu") as engine:
        np.testing.assert_allclose(engine.run(image), wanted, rtol=1e-5, atol=1e-5)
