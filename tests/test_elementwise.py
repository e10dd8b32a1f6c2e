"""kernels/elementwise.cu against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel_harness import assert_same_bits, check_op, normal, run_op, seeded
from vgg16gpu.devices.base import Device
from vgg16gpu.graph import BatchNorm, Relu, Shape

RELU = Relu("x", "y", ("y",))
MAPS: tuple[Shape, ...] = ((1, 1, 1, 1), (1, 3, 5, 5), (2, 4, 7, 3), (5, 6, 4, 4), (1, 130, 3, 3), (2, 8, 16, 17))


def batch_norm(channels: int) -> BatchNorm:
    random = seeded(f"batch norm {channels}")
    scale, shift, mean = (normal(random, channels) for _ in range(3))
    return BatchNorm("x", "y", ("y",), scale, shift, mean, random.uniform(0.1, 3, channels).astype(np.float32), 1e-5)


@pytest.mark.parametrize("shape", [*MAPS, (1, 1), (3, 5), (2, 1000)], ids=str)
def test_relu(device: Device, shape: Shape) -> None:
    x = normal(seeded(str(shape)), *shape)
    y = check_op(device, RELU, x, inner=True)
    assert_same_bits(y, np.where(x < 0, np.float32(0), x))


def test_relu_of_special_values(device: Device) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0, 1e-45, -1e-45, 3e38, -3e38]], np.float32)
    expected = np.array([[np.nan, np.inf, 0, 0, 1e-45, 0, 3e38, 0]], np.float32)
    np.testing.assert_array_equal(run_op(device, RELU, x), expected)


@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_batch_norm(device: Device, shape: Shape) -> None:
    check_op(device, batch_norm(shape[1]), normal(seeded(str(shape)), *shape), inner=True)


def test_batch_norm_keeps_nan_in_its_place(device: Device) -> None:
    x = normal(seeded("nan"), 2, 5, 3, 3)
    op = batch_norm(5)
    clean = run_op(device, op, x)
    x[1, 3, 2, 1] = np.nan
    y = run_op(device, op, x)
    assert np.isnan(y[1, 3, 2, 1])
    y[1, 3, 2, 1] = clean[1, 3, 2, 1]
    assert_same_bits(y, clean)


@pytest.mark.sanitize
@pytest.mark.parametrize("op", [RELU, batch_norm(5)], ids=lambda op: type(op).__name__)
def test_small_shapes(device: Device, op: Relu | BatchNorm) -> None:
    check_op(device, op, normal(seeded("small"), 2, 5, 9, 9), inner=True)
