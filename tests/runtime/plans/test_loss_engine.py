"""`LossEngine`: values and gradients on a device against float64, and what is asked of who wants them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.narrow_vgg import images
from tests.support.onnx_models import Model as Made
from tests.support.weight_files import state_of
from vgg16gpu import LossEngine
from vgg16gpu.compiler.graph.loss import loss_graph
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.plans.losses import FeatureComparison

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5, "relu3_3": 0.25, "relu4_3": 2.0}
STYLE = {"relu1_2": 100.0, "relu3_3": 10.0}
BOUND = 2e-6  # of the distance to float64, by the length of the gradient

CASES: dict[str, dict[str, Any]] = {
    "squared": {"layers": LAYERS},
    "absolute": {"layers": LAYERS, "distance": "absolute"},
    "unit": {"layers": LAYERS, "distance": "unit"},
    "both": {"layers": {"relu2_2": 1.0}, "style": STYLE},
    "first": {"layers": {"relu1_1": 1.0}},
}


def exact(engine: LossEngine, options: dict[str, Any], x: Array, targets: tuple[Array, ...]) -> list[Any]:
    """Loss and gradient in float64; ReLUs and pools of small nets decide there as in float32."""
    given = {"layers": None, "style": None, "distance": "squared", **options}
    terms = FeatureComparison.of(engine.model, **given).terms
    found = loss_graph(engine.graph, terms, x.shape, gradient=True)
    values = compute(found.graph, {engine.graph.input.name: x, **dict(zip(found.targets, targets, strict=True))})
    return [values[name] for name in found.graph.outputs]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(device: Device, model: Path, case: str) -> None:
    with LossEngine(model, **CASES[case], device=device.facts.kind) as engine:
        x, y = images(2, 21), -images(2, 21)
        targets = engine.targets(y)
        loss, gradient = engine.value_and_gradient(x, targets)
        expected, slope = exact(engine, CASES[case], x, targets)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        assert (loss.dtype, loss.shape, gradient.dtype, gradient.shape) == (np.float32, (2,), np.float32, x.shape)
        assert np.linalg.norm(gradient - slope) <= BOUND * np.linalg.norm(slope)
        np.testing.assert_allclose(engine.value(x, targets), loss, rtol=1e-6)
        same = engine.value(y, targets)
        assert (same < 1e-6 * loss).all()


@pytest.mark.every_case(reason="each distance has another symmetric gradient")
@pytest.mark.parametrize("case", CASES)
def test_images_against_others_in_one_run(device: Device, model: Path, case: str) -> None:
    """The bits of the loss against targets of these, and of the gradients with the roles changed."""
    x, y = images(2, 21), -images(2, 21)
    with LossEngine(model, **CASES[case], device=device.facts.kind) as engine:
        loss, to_x = engine.value_and_gradient(x, engine.targets(y))
        _, to_y = engine.value_and_gradient(y, engine.targets(x))
        for found in (engine.compare(x, y), engine.compare(x, y, gradients=1), engine.compare(x, y, gradients=2)):
            for ours, other in zip(found, (loss, to_x, to_y), strict=False):
                assert_same_bits(ours, other)
        assert_same_bits(engine.compare(x, y, mean=True)[0], engine.value(x, engine.targets(y), mean=True))
        with pytest.raises(InputError, match=r"x has shape \(2, 3, 21, 21\), and y \(1, 3, 21, 21\); give as many"):
            engine.compare(x, y[:1])
        with pytest.raises(InputError, match="gradients 3: give 0, 1"):
            engine.compare(x, y, gradients=3)


def test_random_weights_are_told_once_for_each_model(model: Path) -> None:
    opened = Model(model)
    features = {name: array for name, array in state_of(model).items() if name.startswith("features.")}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for given in (opened, opened, model, features):  # nothing says whose weights the last are
            LossEngine(given, LAYERS, device="cpu").close()
    message = "has random weights, by which a loss means little; give trained ones: 'torchvision/vgg16' "
    assert [(each.filename, message in str(each.message)) for each in told] == [(__file__, True)] * 2


def test_one_target_for_all_and_a_style_of_another_size(device: Device, model: Path) -> None:
    x, style = images(2), images(1, 40)
    with LossEngine(model, **CASES["both"], device=device.facts.kind) as engine:
        one = engine.targets(-images(1), style)
        many = [np.repeat(target, 2, 0) for target in one]
        for ours, others in zip(engine.value_and_gradient(x, one), engine.value_and_gradient(x, many), strict=True):
            assert_same_bits(ours, others)
        (_, *grams), (_, *same) = engine.targets(images(1)), engine.targets(images(1), images(1))
        for ours, others in zip(grams, same, strict=True):
            assert_same_bits(ours, others)


def test_weights_of_channels(device: Device, model: Path) -> None:
    """A number is one for each channel."""
    x, y = images(2), -images(2)
    channels = abs(normal(seeded("channels"), 16))
    found = []
    for weight in (3.0, np.full(16, 3.0), channels):
        with LossEngine(model, {"relu2_2": weight}, distance="unit", device=device.facts.kind) as engine:
            found.append(engine.value_and_gradient(x, engine.targets(y)))
            expected, slope = exact(engine, {"layers": {"relu2_2": weight}, "distance": "unit"}, x, engine.targets(y))
            np.testing.assert_allclose(found[-1][0], expected, rtol=1e-5)
            assert np.linalg.norm(found[-1][1] - slope) <= BOUND * np.linalg.norm(slope)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    assert abs(found[2][0] - found[1][0]).min() > 0


def test_what_is_wrong_is_said(device: Device, model: Path) -> None:
    kind: Any = device.facts.kind
    for options, error, words in (
        ({}, InputError, "there is nothing to compare"),
        (  # N4
            {"layers": ["relu1_2"]},
            InputError,
            r"layers is \['relu1_2'\]; give a weight by the name of each layer, as {'relu1_2': 1.0}",
        ),
        ({"layers": "relu1_2"}, InputError, "layers is 'relu1_2'; give a weight by the name of each layer"),
        ({"style": ("relu1_2", "relu2_2")}, InputError, "style is .*, as {'relu1_2': 1.0, 'relu2_2': 1.0}"),
        ({"layers": {1: 1.0}}, InputError, "layers is {1: 1.0}; give a weight by the name"),
        ({"layers": 3}, InputError, "layers is 3; give a weight by the name of each layer, as {'relu3_3': 1.0}"),
        ({"layers": {"nothing": 1.0}}, ModelError, "has no value 'nothing'"),
        ({"layers": {"relu1_2": "much"}}, InputError, "the weight of 'relu1_2' is 'much'; give a finite number$"),
        ({"layers": {"relu1_2": 10**400}}, InputError, "the weight of 'relu1_2' is .*; give a finite number$"),
        ({"layers": {"relu1_2": [1.0, 2.0]}}, InputError, "the weight of 'relu1_2'"),
        ({"style": {"relu1_2": np.nan}}, InputError, "the weight of 'relu1_2' is nan"),
        ({"layers": {"relu1_2": [1.0, 2.0]}, "distance": "unit"}, ModelError, r"\(2,\) weights are given"),
        (
            {"layers": LAYERS, "distance": "cosine"},
            InputError,
            "'cosine' is not known; accepted: squared",
        ),
        ({"layers": LAYERS, "batch": 0}, InputError, "batch 0: give a number from 1"),
        ({"layers": {"output": 1.0}}, ModelError, "a loss compares feature maps, and 'output' has shape"),
    ):
        with pytest.raises(error, match=words):
            LossEngine(model, **options, device=kind)
    x = images(2)
    with LossEngine(model, {"relu1_2": 1.0}, {"relu2_2": 1.0}, device=kind) as engine:
        targets = engine.targets(x)
        for given, words in (
            (targets[:1], "1 targets are given, and 2 are compared"),
            ((targets[0][:, 1:], targets[1]), r"the target of 'relu1_2' is float32 \(2, 2303, 8\)"),
            ((targets[0], targets[1] + np.arange(16, dtype=np.float32)), "'relu2_2' is no Gram matrix"),
        ):
            with pytest.raises(InputError, match=words):
                engine.value(x, given)
        for images_given, words in (
            (x[:, :2], r"the images are float32 \(2, 2, 48, 48\); give float32 \(N, 3, "),
            (x.astype(np.int32), "the images are int32"),
        ):
            with pytest.raises(InputError, match=words):
                engine.value(images_given, targets)
        for gradients in (3, True, 1.0, np.array([1, 2])):
            with pytest.raises(InputError, match=r"gradients .*: give 0, 1 for that to x, or 2 for those to both"):
                engine.compare(x, x, gradients=gradients)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="images to compare with are missing"):
            engine.targets(style=x)
        with pytest.raises(InputError, match=r"does not fit: .*; height from 2 on, width from 2 on would fit"):
            engine.targets(np.zeros((1, 3, 1, 1), np.float32))
        assert_same_bits(engine.value(x.astype(np.float64), targets), engine.value(x, targets))
    engine.close()
    with pytest.raises(InputError, match="the loss is closed"):
        engine.value(x, targets)


def test_a_file_with_a_batch_of_its_own_takes_that(device: Device) -> None:
    model = Made((2, 3, 8, 8))
    model.node("Relu", [model.conv("input", "conv", 3, 4)], "y")
    x = normal(seeded("batch"), 4, 3, 8, 8)
    with LossEngine(model.proto(), {"y": 1.0}, device=device.facts.kind) as engine:
        targets = engine.targets(-x)
        assert_same_bits(engine.value(x[2:], [target[2:] for target in targets]), engine.value(x, targets)[2:])
        with pytest.raises(InputError, match="the model takes 2 images at a time, and 3 are given"):
            engine.value(x[:3], targets)


@pytest.mark.first_case(reason="fp32 has each kind of loss, test_loss.py targets of two bytes")
@pytest.mark.parametrize("kernels", ["auto", "mma"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_of_half_the_bits(device: Device, model: Path, kernels: str, precision: str) -> None:
    x, y = images(2), -images(2)
    with LossEngine(model, LAYERS, device=device.facts.kind) as engine:
        expected, slope = engine.value_and_gradient(x, engine.targets(y))
    options: dict[str, Any] = {"precision": precision, "kernels": kernels, "device": device.facts.kind}
    with LossEngine(model, LAYERS, **options) as engine:
        loss, gradient = engine.value_and_gradient(x, engine.targets(y))
        assert_same_bits(engine.value_and_gradient(x, engine.targets(y))[1], gradient)
    np.testing.assert_allclose(loss, expected, rtol=0.02)
    assert (gradient * slope).sum() / np.linalg.norm(gradient) / np.linalg.norm(slope) > 0.95  # ReLUs and pools flip
    with pytest.raises(ModelError, match="gradients are computed in fp32, fp16, bf16, and precision int8"):
        LossEngine(model, LAYERS, precision="int8", device=device.facts.kind)
