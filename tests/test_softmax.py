"""kernels/softmax.cu against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel_harness import assert_same_bits, check_op, normal, run_op, seeded
from vgg16gpu.accuracy import tolerance
from vgg16gpu.devices.base import Device
from vgg16gpu.graph import Array, Softmax

OP = Softmax("x", "y", ("y",))


def rows(batch: int, columns: int, scale: float = 1.0, offset: float = 0.0) -> Array:
    return normal(seeded(f"{batch} {columns}"), batch, columns, scale=scale) + np.float32(offset)


def check(device: Device, x: Array, *, inner: bool = False) -> Array:
    y = check_op(device, OP, x, inner=inner)
    np.testing.assert_allclose(y.sum(axis=1, dtype=np.float64), 1, rtol=tolerance(1))
    return y


@pytest.mark.parametrize("inner", [False, True], ids=["output", "inner"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 10, 31, 255, 256, 257, 1000])
def test_columns(device: Device, columns: int, inner: bool) -> None:
    check(device, rows(3, columns, 3.0), inner=inner)


@pytest.mark.parametrize(("scale", "offset"), [(1, 1e4), (1, -1e4), (100, 0), (1e30, 0), (1e-30, 0), (0, 7)])
def test_sizes_of_numbers(device: Device, scale: float, offset: float) -> None:
    check(device, rows(2, 300, scale, offset))


def test_one_column_is_certain(device: Device) -> None:
    assert (check(device, rows(5, 1, 50.0)) == 1).all()


def test_minus_infinity_is_impossible(device: Device) -> None:
    x = rows(2, 20)
    x[1, 3:9] = -np.inf
    y = check(device, x)
    assert not y[1, 3:9].any()


@pytest.mark.parametrize("column", [0, 100, 255, 299])
def test_nan_poisons_its_row_and_no_other(device: Device, column: int) -> None:
    x = rows(3, 300)
    clean = run_op(device, OP, x)
    x[1, column] = np.nan
    y = run_op(device, OP, x)
    assert np.isnan(y[1]).all()
    assert_same_bits(y[[0, 2]], clean[[0, 2]])


def test_an_image_has_the_same_bits_in_any_batch(device: Device) -> None:
    x = rows(5, 1000, 4.0)
    alone = np.concatenate([run_op(device, OP, row[None]) for row in x])
    assert_same_bits(run_op(device, OP, x), alone)
    assert_same_bits(run_op(device, OP, x[::-1]), alone[::-1])


@pytest.mark.sanitize
@pytest.mark.parametrize("columns", [10, 257])
def test_small_shapes(device: Device, columns: int) -> None:
    check(device, rows(2, columns), inner=True)
