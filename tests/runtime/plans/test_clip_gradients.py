"""Gradients through clips: beside torch's hardtanh, differences of float64 runs, and of quantised files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.kernel_harness import normal, seeded
from tests.support.onnx_models import Model
from tests.support.quantised_nets import inputs, quantised, vgg
from vgg16gpu import Engine
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.devices.base import Device


def limits(model: Model, name: str, low: float, high: float) -> list[str]:
    return [model.constant(f"{name}.{i}", np.float32(value)) for i, value in enumerate((low, high))]


def net(low: float, high: float) -> Model:
    """Clips of the input, of maps with a pool behind and without, of a map that two read, and of a matrix."""
    model = Model(("n", 3, 12, 14))
    x = model.node("Clip", ["input", *limits(model, "ci", -1.5, 1.25)], "xc")
    x = model.node("Clip", [model.conv(x, "a", 3, 64), *limits(model, "ca", low, high)], "ac")
    x = model.node("MaxPool", [x], "p", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Clip", [model.conv(x, "b", 64, 64), *limits(model, "cb", low, high)], "bc")
    x = model.node("Add", [model.conv(x, "c", 64, 64), x], "sum")
    x = model.node("Flatten", [model.node("Clip", [x, *limits(model, "cs", low, high)], "sc")], "flat")
    x = model.node("Clip", [model.gemm(x, "g", 64 * 42, 32), *limits(model, "cg", low, high)], "gc")
    model.gemm(x, "y", 32, 5)
    return model


def vjp(path: Path, x: Array, given: Array, kind: Any) -> Array:
    with Engine(path, device=kind, batch=len(x), gradient=True) as engine:
        return engine.vjp(x, given)


def by_differences(path: Path, x: Array, given: Array, direction: Array) -> float:
    """The derivative of <given, scores> in a direction, of float64 runs of the graph itself."""
    graph = OnnxModel(path).graph()

    def value(step: float) -> float:
        (name,) = graph.outputs
        return float((compute(graph, {"input": x + step * direction})[name] * given).sum())

    return (value(1e-6) - value(-1e-6)) / 2e-6


def check_direction(path: Path, x: Array, given: Array, gradient: Array, bound: float) -> None:
    """Along the gradient itself, and at random."""
    for direction in (gradient.astype(np.float64), normal(seeded("direction"), *x.shape).astype(np.float64)):
        expected = by_differences(path, x, given, direction)
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(float((gradient * direction).sum()) - expected) <= bound * size


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.1, 2.0), (-2.0, -0.1)])
def test_a_net_of_clips(device: Device, tmp_path: Path, low: float, high: float) -> None:
    path, x = net(low, high).save(tmp_path / "m.onnx"), normal(seeded("x"), 2, 3, 12, 14)
    given = normal(seeded("c"), 2, 5)
    gradient = vjp(path, x, given, device.facts.kind)
    check_direction(path, x, given, gradient, 1e-4)
    outside = (x < -1.5) | (x > 1.25)
    assert outside.any()
    assert not gradient[outside].any()
    assert (gradient[~outside] != 0).mean() > 0.5


def test_quantised_files(device: Device, tmp_path: Path) -> None:
    """The gradient of the file without rounding, whose clips it saturates by."""
    path, x = quantised(vgg("hardtanh"), tmp_path / "m.onnx", scale=3.0), inputs(2, 99, 3.0)
    given = normal(seeded("c"), 2, 10)
    gradient = vjp(path, x, given, device.facts.kind)
    check_direction(path, x, given, gradient, 1e-4)
    far = vjp(path, x * np.float32(50), given, device.facts.kind)
    assert not far[np.abs(x) > 1].any()  # the file saturates its input
