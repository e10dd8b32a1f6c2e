"""kernels/plain: the three kernels to be read first, against float64 on odd shapes, and the program that uses them."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from tests.support.kernel_harness import Bench, normal, seeded
from vgg16gpu.checks.accuracy import tolerance
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Device
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "plain_vgg16.py"

pytestmark = pytest.mark.sanitize


def launch(
    device: Device, name: str, grid: Dim3, block: Dim3, shape: tuple[int, ...], inputs: list[Array], *integers: int
) -> Array:
    """Return the float32 array of this shape that a plain kernel writes, and nothing beside it."""
    bench = Bench(device)
    out = bench.room(4 * math.prod(shape))
    arguments = (out, *map(bench.put, inputs), *map(Scalar, integers))
    bench.run(KernelLaunch(Kernel(f"plain/{name}.cu", name), grid, block, arguments))
    return bench.get(out, shape)


def blocks(length: int, of: int) -> int:
    return -(-length // of)


def convolution(device: Device, x: Array, weight: Array, bias: Array) -> Array:
    (channels, height, width), outputs = x.shape, len(weight)
    grid, shape = Dim3(blocks(width, 32), blocks(height, 8), outputs), (outputs, height, width)
    return launch(device, "conv3x3_relu", grid, Dim3(32, 8), shape, [x, weight, bias], channels, height, width)


def pool(device: Device, x: Array) -> Array:
    channels, height, width = x.shape
    grid, shape = Dim3(blocks(width // 2, 32), blocks(height // 2, 8), channels), (channels, height // 2, width // 2)
    return launch(device, "maxpool2x2", grid, Dim3(32, 8), shape, [x], height, width)


def gemm(device: Device, x: Array, weight: Array, bias: Array, *, relu: bool) -> Array:
    outputs = len(weight)
    inputs = [x, weight, bias]
    return launch(device, "gemm_reduce", Dim3(outputs), Dim3(256), (outputs,), inputs, len(x), int(relu))


SHAPES = ["1x1x1x1", "1x1x1x5", "3x7x9x4", "5x8x32x2", "2x9x33x3", "16x17x31x6", "7x30x61x5"]


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution(device: Device, shape: str) -> None:
    channels, height, width, outputs = map(int, shape.split("x"))
    random = seeded(shape)
    x, weight = normal(random, channels, height, width), normal(random, outputs, channels, 3, 3)
    bias = normal(random, outputs)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    exact = np.einsum("chwij,ocij->ohw", windows, weight.astype(np.float64)) + bias[:, None, None]
    found = convolution(device, x, weight, bias)
    assert np.abs(found - np.maximum(exact, 0)).max() <= tolerance(9 * channels, 1, 1)


@pytest.mark.parametrize("shape", ["1x2x2", "3x5x7", "2x8x64", "4x17x67", "1x3x2", "6x31x9"])
def test_pool(device: Device, shape: str) -> None:
    channels, height, width = map(int, shape.split("x"))
    x = normal(seeded(shape), channels, height, width)
    windows = x[:, : height // 2 * 2, : width // 2 * 2].reshape(channels, height // 2, 2, width // 2, 2)
    assert np.array_equal(pool(device, x), windows.max((2, 4)))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("size", ["1x1", "255x3", "256x2", "257x5", "1000x17"])
def test_gemm(device: Device, size: str, relu: bool) -> None:
    length, outputs = map(int, size.split("x"))
    random = seeded(size)
    x, weight, bias = normal(random, length), normal(random, outputs, length), normal(random, outputs)
    exact = weight.astype(np.float64) @ x + bias
    found = gemm(device, x, weight, bias, relu=relu)
    assert np.abs(found - (np.maximum(exact, 0) if relu else exact)).max() <= tolerance(length, 1, 1)


def test_nan_stays(device: Device) -> None:
    x = np.ones((1, 4, 4), np.float32)
    x[0, 0, 0] = np.nan
    one = np.ones(1, np.float32)
    assert np.isnan(convolution(device, x, np.ones((1, 1, 3, 3), np.float32), one)[0, :2, :2]).all()
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = np.ones((1, 2, 2), np.float32)
        x[0, row, column] = np.nan
        assert np.isnan(pool(device, x)).all()
    assert np.isnan(gemm(device, x.ravel(), np.ones((1, 4), np.float32), one, relu=True)).all()


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_vgg16", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["plain_vgg16"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("tolerated", "code"), [(None, 0), (1e-12, 1)])
def test_the_program_on_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tolerated: float | None, code: int
) -> None:
    """It agrees with onnxruntime, and says so; else it says where not."""
    program = example()
    if tolerated:
        monkeypatch.setattr(program, "TOLERANCE", tolerated)
    monkeypatch.setattr(sys, "argv", ["plain_vgg16.py", "digits", "--device", "cpu"])
    assert program.main() == code
    printed = capsys.readouterr().out
    errors = [float(error) for error in re.findall(r"^picture \d+: best class \d, .* error (\S+)$", printed, re.M)]
    assert len(errors) == 10
    assert max(errors) <= 1e-5
    agree = re.search(r"^10 of 10 agree with onnxruntime; [\d.]+ ms a picture$", printed, re.M)
    assert bool(agree) == (code == 0)


def test_the_program_reads_what_make_vgg_writes(tmp_path: Path) -> None:
    """Batch normalisation aside: each kind of layer, in the order of the file, of any size."""
    make_vgg(tmp_path / "vgg.onnx", variant="vgg13", size=37, width=8, hidden=32, classes=10)
    picture, layers = example().read_layers(tmp_path / "vgg.onnx")
    assert picture == (3, 37, 37)
    assert [layer.kernel for layer in layers] == [
        *["conv3x3_relu", "conv3x3_relu", "maxpool2x2"] * 5,
        *["gemm_reduce"] * 3,
    ]
    assert layers[-1].shape == (10,)


def test_other_nets_are_refused(tmp_path: Path) -> None:
    model = onnx.load(digits_model())
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("auto_pad", "SAME_UPPER"))
    next(item for item in model.graph.node[0].attribute if item.name == "strides").ints[0] = 2
    onnx.save(model, tmp_path / "strided.onnx")
    with pytest.raises(ValueError, match=r"do not compute Conv '.*' with .*'strides': \[2, 1\]"):
        example().read_layers(tmp_path / "strided.onnx")
