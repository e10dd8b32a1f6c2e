"""`Engine.vjp`: gradients on a device against float64, and what is asked of who wants one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.narrow_vgg import SCORES, SIZES, images
from tests.support.onnx_models import Model, torch_vgg
from vgg16gpu import Engine
from vgg16gpu.compiler.graph.gradient import gradient_graph
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.plans.gradients import Gradients

BOUND = 2e-6  # of the distance to float64, by the length of the gradient


def cotangents(outputs: Sequence[Array]) -> list[Array]:
    random = seeded("cotangents")
    return [normal(random, *y.shape) for y in outputs]


def exact(engine: Engine, x: Array, given: Sequence[Array]) -> Any:
    """The gradient in float64. ReLUs and pools of small nets decide there as in float32."""
    found = gradient_graph(engine.graph, x.shape)
    arrays = {engine.graph.input.name: x, **dict(zip(found.cotangents, given, strict=True))}
    return compute(found.graph, {item.name: arrays[item.name] for item in found.graph.inputs})[found.graph.outputs[0]]


def check(engine: Engine, x: Array) -> Array:
    y = engine.run(x)
    outputs = y if isinstance(y, tuple) else (y,)
    given = cotangents(outputs)
    gradient = engine.vjp(x, given if len(given) > 1 else given[0])
    assert gradient.dtype == np.float32
    expected = exact(engine, x, given)
    assert np.linalg.norm(gradient - expected) <= BOUND * np.linalg.norm(expected)
    return gradient


@pytest.mark.parametrize("name", ["vgg16_bn-48", "vgg11-61"])
def test_whole_networks(device: Device, models: dict[str, Path], name: str) -> None:
    with Engine(models[name], device=device.facts.kind, batch=2, gradient=True) as engine:
        check(engine, images(3, SIZES[name]))


def test_features_along_the_way(device: Device, model: Path) -> None:
    layers = ["relu1_2", "relu2_2", "relu3_3", "relu4_3"]
    with Engine(model, device=device.facts.kind, outputs=layers, gradient=True) as engine:
        gradient = check(engine, images(1))
        y = engine.run(images(1))
        assert isinstance(y, tuple)
        only_last = engine.vjp(images(1), [*(np.zeros_like(part) for part in y[:-1]), y[-1]])
    with Engine(model, device=device.facts.kind, outputs=layers[-1:], gradient=True) as engine:
        assert_same_bits(engine.vjp(images(1), y[-1]), only_last)
    assert gradient.any()


def test_a_model_with_its_channels_last_gives_gradients_in_its_own_order(device: Device) -> None:
    model = Model((None, 8, 6, 3))
    x = model.node("Transpose", ["input"], "nchw", perm=[0, 3, 1, 2])
    x = model.node("Relu", [model.conv(x, "conv", 3, 4)], "relu")
    model.node("GlobalAveragePool", [x], "y")
    plain = Model((None, 3, 8, 6))
    plain.node("GlobalAveragePool", [plain.node("Relu", [plain.conv("input", "conv", 3, 4)], "relu")], "y")
    given = normal(seeded("last"), 2, 8, 6, 3)
    c = np.ones((2, 4, 1, 1), np.float32)
    options: dict[str, Any] = {"device": device.facts.kind, "batch": 2, "gradient": True}
    with Engine(model.proto(), **options) as engine:
        gradient = engine.vjp(given, c)
    with Engine(plain.proto(), **options) as engine:
        expected = engine.vjp(np.ascontiguousarray(np.moveaxis(given, -1, 1)), c)
    assert_same_bits(np.ascontiguousarray(gradient), np.ascontiguousarray(np.moveaxis(expected, 1, -1)))


def test_what_is_wrong_is_said(device: Device, model: Path) -> None:
    kind, x = device.facts.kind, images(2)
    with Engine(model, device=kind) as engine, pytest.raises(InputError, match="build it with gradient=True"):
        engine.vjp(x, np.ones((2, SCORES), np.float32))
    with Engine(model, device=kind, batch=2, gradient=True) as engine:
        for given, words in (
            (np.ones((1, SCORES), np.float32), rf"float32 \(1, {SCORES}\); give float32 \(2, {SCORES}\)"),
            (np.ones((2, SCORES), np.int64), "is int64"),
            ([np.ones((2, SCORES), np.float32)] * 2, "2 gradients are given; the model has 1 outputs: output"),
        ):
            with pytest.raises(InputError, match=words):
                engine.vjp(x, given)
        pixels = np.zeros((2, *x.shape[2:], 3), np.uint8)
        with pytest.raises(InputError, match="without a gradient; give float32"):
            engine.vjp(pixels, np.ones((2, SCORES), np.float32))
        with pytest.raises(InputError, match="this model takes"):
            engine.vjp(x[:, :2], np.ones((2, SCORES), np.float32))
        double = engine.vjp(x, np.ones((2, SCORES)))  # float64 is rounded
        assert_same_bits(double, engine.vjp(x, np.ones((2, SCORES), np.float32)))
    with pytest.raises(InputError, match="closed"):
        engine.vjp(x, np.ones((2, SCORES), np.float32))
    with pytest.raises(ModelError, match="gradients are computed in fp32, fp16, bf16, and precision int8"):
        Gradients(engine.graph, engine.device, "int8", "auto", None)
    unknown = torch_vgg()
    unknown.node("LeakyRelu", [unknown.nodes[-1].output[0]], "leaky")
    with pytest.raises(ModelError, match="LeakyRelu 'leaky': its gradient is not supported"):
        Engine(unknown.proto(), device=kind, gradient=True)


@pytest.mark.first_case(reason="the kernels' tests scale by powers of two")
@pytest.mark.parametrize("kernels", ["auto", "mma"])
def test_small_and_large_gradients_in_float16_keep_their_bits(device: Device, model: Path, kernels: str) -> None:
    """Each image has its own factor; whatever power of two its cotangent is multiplied by comes out again."""
    layers, x = ["relu1_2", "relu2_2", "output"], images(3)
    options: dict[str, Any] = {"outputs": layers, "precision": "fp16", "kernels": kernels, "gradient": True, "batch": 4}
    with Engine(model, device=device.facts.kind, **options) as engine:
        slopes = cotangents(engine.run(x))  # type: ignore[arg-type]
        right = engine.vjp(x, slopes)
        assert np.isfinite(right).all()
        factors = np.array([2.0**-60, 1.0, 2.0**40], np.float32)
        given = [y * factors.reshape(-1, *(1,) * (y.ndim - 1)) for y in slopes]
        assert_same_bits(engine.vjp(x, given), right * factors[:, None, None, None])
        assert not engine.vjp(x, [0 * y for y in slopes]).any()
    with Engine(model, device=device.facts.kind, outputs=layers, gradient=True) as engine:
        expected = engine.vjp(x, slopes)
    likeness = (right * expected).sum() / np.linalg.norm(right) / np.linalg.norm(expected)
    assert likeness > 0.995


def test_values_that_leave_the_range_of_float16_are_said(device: Device, model: Path) -> None:
    x = images(2)
    x[1] *= np.float32(1e6)
    options: dict[str, Any] = {"outputs": ["relu2_2"], "precision": "fp16", "kernels": "mma", "gradient": True}
    with Engine(model, device=device.facts.kind, batch=2, **options) as engine:
        (given,) = cotangents([engine.run(images(2))])
        with pytest.raises(InputError, match=r"input 1 of 2 .* values leave the range of float16"):
            engine.vjp(x, given)
        assert np.isfinite(engine.vjp(images(2), given)).all()
