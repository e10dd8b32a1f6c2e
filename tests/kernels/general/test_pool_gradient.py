"""kernels/general/pool_gradient.cu against float64 numpy, window by window."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from tests.kernels.general.test_pool import GENERAL_WINDOWS, KINDS, WINDOWS, image, random_window
from tests.support.closeness import assert_close
from tests.support.general_harness import compute
from tests.support.graph_reference import compute as reference
from tests.support.kernel_harness import normal, seeded
from vgg16gpu.compiler.graph.gradient_ops import PoolGradient
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import Layout

Kind = Literal["max", "average"]
ALL_WINDOWS = {**WINDOWS, **GENERAL_WINDOWS}


def pool_gradient(kind: Kind, window: Window, count_include_pad: bool = False) -> PoolGradient:
    return PoolGradient("g", "y", ("y",), ("x",), kind, window, count_include_pad)


def gradient_for(op: PoolGradient, x: Array) -> Array:
    return normal(seeded("gradient"), *x.shape[:2], *op.window.output_size(*x.shape[2:]))


def run(device: Device, op: PoolGradient, gradient: Array, x: Array) -> Array:
    return compute(device, op, [gradient, x], [Layout.NHWC] * 3)


def check(device: Device, op: PoolGradient, x: Array) -> Array:
    gradient = gradient_for(op, x)
    y = run(device, op, gradient, x)
    shapes = GraphInput("g", gradient.shape), GraphInput("x", x.shape)
    expected = reference(Graph(shapes[0], (op,), ("y",), shapes[1:]), {"g": gradient, "x": x})["y"]
    assert_close(y, expected, atol=2e-6, rtol=0.0)
    return y


@pytest.mark.sanitize
@pytest.mark.parametrize("window", ALL_WINDOWS)
@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (2, 3, 10, 9)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_windows(device: Device, kind: Kind, shape: Shape, window: str) -> None:
    check(device, pool_gradient(kind, ALL_WINDOWS[window]), image(shape))


@pytest.mark.parametrize("window", ALL_WINDOWS)
def test_average_that_counted_the_padding(device: Device, window: str) -> None:
    check(device, pool_gradient("average", ALL_WINDOWS[window], count_include_pad=True), image((2, 6, 9, 8)))


@pytest.mark.parametrize("case", range(40))
def test_random_windows_with_ties(device: Device, case: int) -> None:
    """Whole numbers from 0 to 2: nearly every window has several maxima."""
    random = seeded(f"ties {case}")
    shape = (2, 5, *map(int, random.integers(8, 12, 2)))
    x = random.integers(0, 3, shape).astype(np.float32)
    for kind in KINDS:
        check(device, pool_gradient(kind, random_window(random), bool(random.integers(2))), x)


def test_the_first_of_several_maxima_gets_all(device: Device) -> None:
    x = np.zeros((1, 4, 4, 4), np.float32)
    x[0, :, 2, 3] = x[0, :, 3, 2] = 1
    y = run(device, pool_gradient("max", MAX_POOL_2X2), np.ones((1, 4, 2, 2), np.float32), x)
    expected = np.zeros((4, 4), np.float32)
    expected[0, 0] = expected[0, 2] = expected[2, 0] = expected[2, 3] = 1
    np.testing.assert_array_equal(y[0], np.broadcast_to(expected, (4, 4, 4)))


def test_maps_of_minus_infinity_and_of_nan(device: Device) -> None:
    """As torch: the first element where all are minus infinity; NaN is the largest of all, the last one of several."""
    x = np.full((1, 4, 2, 4), -np.inf, np.float32)
    x[0, :, 0, 2] = x[0, :, 1, 2] = np.nan
    x[0, :, 0, 3] = np.inf
    y = run(device, pool_gradient("max", MAX_POOL_2X2), np.array([[[[2.0, 3.0]]] * 4], np.float32)[:, :, 0:1], x)
    np.testing.assert_array_equal(y[0, 0], [[2, 0, 0, 0], [0, 0, 3, 0]])


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_leave_out_rows_give_them_nothing(device: Device, kind: Kind) -> None:
    y = check(device, pool_gradient(kind, MAX_POOL_2X2), image((1, 3, 7, 5)))
    assert not y[:, :, 6].any()
    assert not y[:, :, :, 4].any()
    assert y[:, :, :6, :4].any()


def test_a_gradient_of_another_shape_is_refused() -> None:
    op = pool_gradient("max", Window((3, 3), (2, 2), Pads(1, 1, 1, 1)))
    with pytest.raises(ModelError, match="PoolGradient 'y'"):
        op.shape_of_y((1, 4, 5, 5), (1, 4, 8, 8))
