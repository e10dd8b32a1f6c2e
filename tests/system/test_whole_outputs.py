"""Outputs without a row for each image: whole, as onnxruntime gives them, from runs, streams and commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.foreign_arrays import Placed, opened
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import Model, random_input
from vgg16gpu import Engine
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.cli import cli
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.on_device.results import DeviceArray

SHAPE = (1, 4, 13, 11)


def flattened() -> Model:
    """Flatten behind the channels: as many rows as channels."""
    model = Model(SHAPE)
    model.node("Flatten", ["input"], "y", axis=2)
    return model


def segmented() -> Model:
    """A row for each pixel."""
    model = Model(SHAPE)
    model.node("Transpose", [model.conv("input", "c", 4, 5)], "t", perm=[0, 2, 3, 1])
    model.node("Reshape", ["t", model.constant("shape", np.array([-1, 5]))], "r")
    model.node("Softmax", ["r"], "y", axis=1)
    return model


def squeezed() -> Model:
    """No dimension but that of the channels."""
    model = Model(SHAPE)
    model.node("Squeeze", [model.node("GlobalAveragePool", ["input"], "g")], "y")
    return model


def reversed_dimensions() -> Model:
    model = Model(SHAPE)
    model.node("Transpose", ["input"], "y")
    return model


def added() -> Model:
    """A constant of higher rank gives the result its rank."""
    model = Model(SHAPE)
    model.node("Add", ["input", model.weight("k", 2, 1, 4, 1, 1)], "y")
    return model


def scalar() -> Model:
    model = Model(SHAPE)
    model.node("Squeeze", [model.conv("input", "c", 4, 1, 1, kernel_shape=[1, 1])], "s", axes=[0, 1])
    model.node("MatMul", [model.constant("left", np.ones((1, 13), np.float32)), "s"], "l")
    model.node("MatMul", ["l", model.constant("right", np.ones((11, 1), np.float32))], "p")
    model.node("Squeeze", ["p"], "y")
    return model


MODELS = (flattened, segmented, squeezed, reversed_dimensions, added, scalar)
everything = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


def saved(make: Callable[[], Model], folder: Path, outputs: list[str] | None = None) -> Path:
    return make().save(folder / "m.onnx", outputs, opset=12)


def expected_of(path: Path, x: Any) -> list[Any]:
    return list(open_session(path).run(None, {"input": x}))


def check(found: Any, expected: Any) -> None:
    assert isinstance(found, np.ndarray)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@everything
def test_run_and_stream(device: Device, tmp_path: Path, make: Callable[[], Model]) -> None:
    path = saved(make, tmp_path)
    inputs = [random_input(SHAPE, seed) for seed in range(3)]
    with Engine(path, device=device.facts.kind) as engine:
        for x, found in zip(inputs, engine.stream(inputs), strict=True):
            check(found, expected_of(path, x)[0])
            assert_same_bits(engine.run(x), found)


@everything
def test_arrays_on_the_device(device: Device, tmp_path: Path, make: Callable[[], Model]) -> None:
    x = random_input(SHAPE)
    with opened(saved(make, tmp_path), device) as engine:
        expected = engine.run(x)
        assert isinstance(expected, np.ndarray)
        found = engine.run(Placed(engine.device, x))
        assert isinstance(found, DeviceArray)
        assert found.shape == expected.shape
        assert_same_bits(found.numpy(), expected)


def test_a_scalar_on_the_device_has_no_length(device: Device, tmp_path: Path) -> None:
    with opened(saved(scalar, tmp_path), device) as engine:
        found = engine.run(Placed(engine.device, random_input(SHAPE)))
        with pytest.raises(TypeError, match="no length"):
            len(found)


@pytest.mark.usefixtures("second_passes")
def test_the_second_pass_replaces_all_of_it(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_input(SHAPE)
    with opened(saved(segmented, tmp_path), device, precision="fp16", kernels="mma") as engine:
        expected, make_pass = engine.run(x), engine.executor._pass
        assert isinstance(expected, np.ndarray)

        def spoilt(*arguments: Any) -> Any:
            results = make_pass(*arguments)
            if engine.second_passes == 1:  # those of the run before
                monkeypatch.undo()
                results.outputs[0][...] = np.nan
            return results

        assert engine.second_passes == 1
        monkeypatch.setattr(engine.executor, "_pass", spoilt)
        assert_same_bits(engine.run(x), expected)
        assert engine.second_passes == 2
        found = engine.run(Placed(engine.device, x))
        assert isinstance(found, DeviceArray)
        assert_same_bits(found.numpy(), expected)
        assert engine.second_passes == 3


def test_several_images_at_once_are_refused(tmp_path: Path) -> None:
    x = random_input((3, *SHAPE[1:]))
    with Engine(saved(flattened, tmp_path), device="cpu") as engine:
        with pytest.raises(InputError, match=r"\(3, 4, 13, 11\); output 'y' has shape \(4, 143\), without .* N = 1"):
            engine.run(x)
        with pytest.raises(InputError, match=r"item 1 of the stream: .* N = 1"):
            list(engine.stream([x[:1], x]))


def test_rows_that_are_one_come_for_any_number_of_images(tmp_path: Path) -> None:
    """Whatever a model of batch 1 does with its only row, images do not meet in it."""
    model = Model(SHAPE)
    model.node("Reshape", ["input", model.constant("shape", np.array([1, -1]))], "y")
    x = random_input((3, *SHAPE[1:]))
    with Engine(model.save(tmp_path / "m.onnx"), device="cpu") as engine:
        check(engine.run(x), x.reshape(3, -1))


# ---- Commands


def infer(path: Path, *arguments: Any) -> str:
    result = CliRunner().invoke(cli, ["infer", *map(str, arguments), "--model", str(path), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    return result.output


def test_infer_writes_all_of_it(tmp_path: Path) -> None:
    path, x = saved(segmented, tmp_path), random_input((2, *SHAPE[1:]))
    np.save(tmp_path / "x.npy", x)
    expected = np.stack([expected_of(path, x[i : i + 1])[0] for i in range(2)])
    for suffix in ("npy", "txt", "json"):
        infer(path, tmp_path / "x.npy", "--output", tmp_path / f"y.{suffix}")
    check(np.load(tmp_path / "y.npy"), expected)
    check(np.loadtxt(tmp_path / "y.txt", ndmin=2), expected.reshape(2, -1))
    check(np.array([row["scores"] for row in json.loads((tmp_path / "y.json").read_text())]), expected)
    report = json.loads(infer(path, tmp_path / "x.npy", "--json"))
    assert report["output_shape"] == list(expected.shape[1:])


def test_infer_says_what_shape_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", random_input(SHAPE))
    assert "Output of shape [4, 143] per input" in infer(saved(flattened, tmp_path), tmp_path / "x.npy")


@pytest.mark.parametrize("make", [flattened, scalar], ids=lambda make: make.__name__)
def test_a_testbench_needs_rows(tmp_path: Path, make: Callable[[], Model]) -> None:
    path = saved(make, tmp_path)
    np.save(tmp_path / "x.npy", random_input(SHAPE))
    arguments = ["testbench", "--model", str(path), "--inputs", str(tmp_path / "x.npy"), "--device", "cpu"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "a testbench needs a row for each of 1 inputs" in result.stderr


def test_references_have_a_row_for_each_input(tmp_path: Path) -> None:
    path = saved(flattened, tmp_path)
    with pytest.raises(ModelError, match=r"output 'y' has shape \(4, 143\) for 1 inputs; one row for each is needed"):
        Oracle(path).scores(random_input(SHAPE))
