"""kernels/general/lrn.cu against float64 numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits, normal, run_op, seeded
from tests.support.onnx_models import Model, onnxruntime_values
from tests.support.reference import Array64
from vgg16gpu.checks.accuracy import FLOAT32_EPSILON
from vgg16gpu.compiler.graph.ops import Array, LocalResponseNorm, Shape
from vgg16gpu.devices.base import Device


def lrn(size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> LocalResponseNorm:
    return LocalResponseNorm("x", "y", ("y",), size, alpha, beta, bias)


def image(shape: Shape, scale: float = 1.0) -> Array:
    return normal(seeded(str(shape)), *shape, scale=scale)


def judged(op: LocalResponseNorm, x: Array) -> Array64:
    """The formula, with alpha, beta and bias as float32 as in an ONNX file."""
    alpha, beta, bias = (float(np.float32(number)) for number in (op.alpha, op.beta, op.bias))
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), ((op.size - 1) // 2, op.size // 2), (0, 0), (0, 0)))
    sums = np.lib.stride_tricks.sliding_window_view(squares, op.size, axis=1).sum(axis=-1)
    return np.asarray(x / (bias + alpha / op.size * sums) ** beta)


def check(device: Device, op: LocalResponseNorm, x: Array, *, inner: bool = True) -> Array:
    y = run_op(device, op, x, inner=inner)
    np.testing.assert_allclose(y, judged(op, x), rtol=0.51 * FLOAT32_EPSILON, atol=2.0**-149)  # rounded once
    return y


@pytest.mark.parametrize("inner", [False, True], ids=["output", "inner"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 9, 64])
def test_sizes(device: Device, channels: int, size: int, inner: bool) -> None:
    check(device, lrn(size, alpha=0.7), image((2, channels, 3, 5)), inner=inner)


@pytest.mark.parametrize(
    ("alpha", "beta", "bias"),
    [(1e-4, 0.75, 1.0), (2e-5, 0.75, 2.0), (0.5, 0.5, 0.5), (1.0, 1.0, 0.1), (3.0, 2.0, 1e-3), (0.1, 0.25, 1.0)],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_numbers_against_onnxruntime(
    device: Device, tmp_path: Path, alpha: float, beta: float, bias: float, scale: float
) -> None:
    x = image((2, 7, 4, 3), scale)
    model = Model(x.shape)
    model.node("LRN", ["input"], "y", size=5, alpha=alpha, beta=beta, bias=bias)
    expected = onnxruntime_values(model.save(tmp_path / "m.onnx", opset=13), x)["y"]
    np.testing.assert_allclose(check(device, lrn(5, alpha, beta, bias), x), expected, rtol=1e-5)


def test_large_and_small_numbers(device: Device) -> None:
    """Squares that no float holds."""
    for scale in (1e30, 1e-30):
        y = check(device, lrn(5), image((1, 8, 3, 3), scale))
        assert np.isfinite(y).all()
        assert y.all()


def test_zeros(device: Device) -> None:
    x = np.zeros((1, 5, 2, 2), np.float32)
    assert not check(device, lrn(3), x).any()
    assert np.isnan(run_op(device, lrn(3, bias=0.0), x)).all()  # 0 / 0


def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device) -> None:
    op, x = lrn(4), image((2, 9, 3, 3))
    clean = run_op(device, op, x)
    x[1, 4, 0, 2] = np.nan
    y = run_op(device, op, x)
    assert np.isnan(y[1, 2:6, 0, 2]).all()  # one channel before c and two behind it see channel 4 from 2 to 5
    y[1, 2:6, 0, 2] = clean[1, 2:6, 0, 2]
    assert_same_bits(y, clean)


@pytest.mark.sanitize
@pytest.mark.parametrize("size", [2, 5])
def test_small_shapes(device: Device, size: int) -> None:
    check(device, lrn(size, alpha=1.0), image((2, 6, 3, 5)))
