"""kernels/general/softmax.cu against float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.closeness import assert_close
from tests.support.general_harness import compute, layouts_of
from tests.support.kernel_harness import assert_same_bits, check_op, normal, run_op, seeded
from tests.support.reference import Array64
from vgg16gpu.checks.accuracy import FLOAT32_EPSILON, tolerance
from vgg16gpu.compiler.graph.ops import Array, AxisSoftmax, Shape, Softmax
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Layout

OP = Softmax("x", "y", ("y",))
PLAIN = (Layout.PLAIN, Layout.PLAIN)
NHWC = (Layout.NHWC, Layout.NHWC)


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


# ---- Over any dimensions of values of any rank and layout


def axis_softmax(axis: int, last: int | None = None, *, log: bool = False) -> AxisSoftmax:
    return AxisSoftmax("x", "y", ("y",), axis, axis if last is None else last, log)


def judged(op: AxisSoftmax, x: Array) -> Array64:
    axes = tuple(range(op.axis, op.last + 1))
    shifted = x.astype(np.float64) - x.max(axis=axes, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(total) if op.log else exponentials / total)


def check_axis(device: Device, op: AxisSoftmax, x: Array, layouts: tuple[Layout, ...] = PLAIN) -> Array:
    y, expected = compute(device, op, [x], layouts), judged(op, x)
    if op.log:  # the logarithm of the sum, the difference from the largest, their difference: a rounding each
        longest = math.prod(x.shape[op.axis : op.last + 1])
        assert_close(y, expected, 2 * FLOAT32_EPSILON * (1 + math.log(longest)), 2 * FLOAT32_EPSILON)
    else:
        assert_close(y, expected, 2.0**-149, tolerance(1) + FLOAT32_EPSILON * min(float(np.ptp(x)), 104.0))
    return y


SHAPES: dict[Shape, tuple[tuple[int, int], ...]] = {  # (axis, last)
    (7,): ((0, 0),),
    (3, 5): ((0, 0), (1, 1), (0, 1)),
    (3, 4, 5): ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2)),
    (2, 5, 3, 7): ((0, 0), (1, 1), (2, 2), (3, 3), (1, 3), (2, 3), (0, 3), (1, 2)),
    (2, 8, 1, 300): ((1, 1), (3, 3), (1, 3)),
    (2, 1, 3, 2, 2, 1, 2, 3): ((0, 0), (2, 4), (7, 7), (1, 7)),
}
CASES = [(shape, *dims) for shape, all_dims in SHAPES.items() for dims in all_dims]


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])
@pytest.mark.parametrize(("shape", "axis", "last"), CASES, ids=str)
def test_dimensions(device: Device, shape: Shape, axis: int, last: int, log: bool) -> None:
    x = normal(seeded(str(shape)), *shape, scale=3.0)
    for layouts in layouts_of(shape, shape):
        check_axis(device, axis_softmax(axis, last, log=log), x, layouts)


@pytest.mark.parametrize("columns", [1, 10, 257, 1000])
def test_both_kernels_give_the_same_bits(device: Device, columns: int) -> None:
    x = rows(3, columns, 4.0)
    assert_same_bits(compute(device, axis_softmax(1), [x], NHWC), run_op(device, OP, x))


def test_a_long_row_is_added_up_in_groups(device: Device) -> None:
    """Equal terms: the roundings of a running sum of 3000 of them, a thread's share, go the same way: 3e-5."""
    x = np.full((1, 256 * 3000), np.log(0.7), np.float32)
    x[0, 0] = 0
    np.testing.assert_allclose(compute(device, axis_softmax(1), [x], PLAIN), judged(axis_softmax(1), x), rtol=5e-6)


@pytest.mark.parametrize(("scale", "offset"), [(1, 1e4), (100, 0), (1e30, 0), (1e-30, 0), (0, 7)])
def test_logarithms_of_sizes_of_numbers(device: Device, scale: float, offset: float) -> None:
    check_axis(device, axis_softmax(1, log=True), rows(2, 300, scale, offset))


def test_logarithm_of_the_certain_and_the_impossible(device: Device) -> None:
    x = rows(2, 20)
    x[1, 3:9] = -np.inf
    y = compute(device, axis_softmax(1, log=True), [x], PLAIN)
    assert np.isneginf(y[1, 3:9]).all()
    np.testing.assert_allclose(np.exp(y.astype(np.float64)).sum(axis=1), 1, rtol=1e-6)
    assert not compute(device, axis_softmax(1, log=True), [rows(4, 1, 50.0)], PLAIN).any()


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])
def test_nan_poisons_what_it_is_summed_with(device: Device, log: bool) -> None:
    op, x = axis_softmax(1, log=log), normal(seeded("nan"), 2, 5, 3, 4)
    clean = compute(device, op, [x], NHWC)
    x[1, 2, 0, 3] = np.nan
    y = compute(device, op, [x], NHWC)
    assert np.isnan(y[1, :, 0, 3]).all()
    y[1, :, 0, 3] = clean[1, :, 0, 3]
    assert_same_bits(y, clean)


@pytest.mark.sanitize
@pytest.mark.parametrize("axis", [1, 3])
def test_small_maps(device: Device, axis: int) -> None:
    check_axis(device, axis_softmax(axis, log=axis == 3), normal(seeded("small"), 2, 5, 3, 4), NHWC)
