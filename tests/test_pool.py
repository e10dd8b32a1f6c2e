"""kernels/pool.cu against float64 numpy: maxima exactly, means within the tolerance."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from tests.kernel_harness import assert_same_bits, check_op, normal, run_op, seeded
from tests.reference import apply
from vgg16gpu.devices.base import Device
from vgg16gpu.graph import Array, Pads, Pool, Shape, Window

Kind = Literal["max", "average"]
KINDS: tuple[Kind, ...] = ("max", "average")

WINDOWS = {
    "2x2": Window((2, 2), (2, 2)),
    "2x2-overlapping": Window((2, 2), (1, 1)),
    "3x3-overlapping": Window((3, 3), (2, 2)),
    "3x3-padded": Window((3, 3), (2, 2), Pads(1, 1, 1, 1)),
    "3x3-same": Window((3, 3), (1, 1), Pads(1, 1, 1, 1)),
    "3x3-one-sided": Window((3, 3), (2, 2), Pads(0, 2, 1, 0)),
    "2x3": Window((2, 3), (2, 1), Pads(1, 0, 0, 2)),
    "1x3": Window((1, 3), (1, 3)),
    "2x2-gaps": Window((2, 2), (3, 3)),
    "5x5-padded": Window((5, 5), (3, 2), Pads(2, 2, 2, 2)),
    "7x7": Window((7, 7), (1, 1)),
}
MAPS: tuple[Shape, ...] = ((1, 4, 8, 8), (2, 3, 15, 15), (3, 5, 7, 9))


def pool(kind: Kind, window: Window, count_include_pad: bool = False) -> Pool:
    return Pool("x", "y", ("y",), kind, window, count_include_pad)


def image(shape: Shape) -> Array:
    return normal(seeded(str(shape)), *shape)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", MAPS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_windows(device: Device, kind: Kind, shape: Shape, window: str) -> None:
    check_op(device, pool(kind, WINDOWS[window]), image(shape), inner=True)


@pytest.mark.parametrize("window", WINDOWS)
def test_average_that_counts_the_padding(device: Device, window: str) -> None:
    check_op(device, pool("average", WINDOWS[window], count_include_pad=True), image((2, 6, 9, 8)))


@pytest.mark.parametrize("size", [244, 122, 61, 30, 15, 7, 2])
def test_odd_maps_lose_their_last_row_and_column(device: Device, size: int) -> None:
    y = check_op(device, pool("max", WINDOWS["2x2"]), image((1, 1, size, size)))
    assert y.shape[2:] == (size // 2, size // 2)


@pytest.mark.parametrize("batch", range(1, 6))
def test_batches(device: Device, batch: int) -> None:
    op, x = pool("average", WINDOWS["3x3-padded"]), image((batch, 7, 6, 6))
    y = check_op(device, op, x)
    for index in range(batch):
        assert_same_bits(run_op(device, op, x[index : index + 1]), y[index : index + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_one_pixel(device: Device, kind: Kind) -> None:
    x = image((3, 1, 1, 1))
    assert_same_bits(check_op(device, pool(kind, Window((1, 1))), x), x)


def test_maximum_of_negative_values_and_minus_infinity(device: Device) -> None:
    x = image((1, 4, 6, 6)) - 100
    assert (check_op(device, pool("max", WINDOWS["3x3-padded"]), x) < 0).all()  # the padding is no zero
    x[0, 1] = -np.inf
    assert np.isneginf(check_op(device, pool("max", WINDOWS["3x3-padded"]), x)[0, 1]).all()
    x[0, 2, 3, 3] = np.inf
    assert np.isposinf(check_op(device, pool("max", WINDOWS["2x2"]), x)[0, 2, 1, 1])


@pytest.mark.parametrize("window", ["2x2", "3x3-overlapping", "3x3-padded", "5x5-padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device, kind: Kind, window: str) -> None:
    x = image((2, 5, 9, 9))
    op = pool(kind, WINDOWS[window])
    clean = run_op(device, op, x)
    for row, column in ((0, 0), (3, 4), (6, 7)):
        x[1, 2, row, column] = np.nan
    y = run_op(device, op, x)
    expected = np.isnan(apply(op, x.astype(np.float64)))
    assert expected.any()
    np.testing.assert_array_equal(np.isnan(y), expected)
    assert_same_bits(y[~expected], clean[~expected])


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", KINDS)
def test_small_shapes(device: Device, kind: Kind) -> None:
    check_op(device, pool(kind, WINDOWS["3x3-padded"]), image((2, 3, 7, 5)), inner=True)
