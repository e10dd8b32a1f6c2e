"""`Histogram` in compiler/quantization/scheme.py: what is counted, and which step is best."""

import numpy as np
import pytest

from vgg16gpu.compiler.quantization.scheme import Histogram, Scale
from vgg16gpu.errors import InputError


def histogram_of(*arrays):
    histogram = Histogram()
    for array in arrays:
        histogram.add(np.asarray(array, np.float32), "v")
    return histogram


def squared_error(x, scale):
    low, high = scale.limits
    return np.square(np.clip(np.rint(x / scale.step), low, high) * scale.step - x).mean()


@pytest.mark.parametrize("signed", [False, True])
def test_the_best_step_is_the_best_of_the_real_elements(signed):
    random = np.random.default_rng(5)
    x = random.standard_normal(200_000) ** 3
    x = x if signed else np.abs(x)
    scale = histogram_of(x).best_scale(signed=signed)
    best = squared_error(x, scale)
    assert scale.step < np.abs(x).max() / scale.limits[1]  # long tails are clipped
    for factor in (0.5, 0.8, 0.9, 1.1, 1.25, 2):
        other = Scale(scale.step * factor, signed)
        assert best <= squared_error(x, other) * 1.01
    assert np.float32(scale.step) == scale.step


def test_even_values_are_not_clipped():
    scale = histogram_of(np.linspace(0, 10, 10_001)).best_scale(signed=False)
    assert scale.step == np.float32(10 / 255)


def test_clipped_share():
    histogram = histogram_of([1, -2, 3, -100], np.zeros((2, 3)))
    assert histogram.clipped_share(Scale(0.5, signed=True)) == pytest.approx(0.1)
    assert histogram.clipped_share(Scale(1.0, signed=True)) == 0
    assert histogram.largest == 100


def test_order_and_parts_do_not_matter():
    x = np.random.default_rng(6).standard_normal((6, 50)).astype(np.float32)
    scale = histogram_of(x).best_scale(signed=True)
    assert histogram_of(*x[::-1]).best_scale(signed=True) == scale


@pytest.mark.parametrize("value", [0.0, 1e-45, 3e-39, 1e-30, 3.4e38])
def test_extreme_values(value):
    scale = histogram_of([value, -value]).best_scale(signed=True)
    assert np.isfinite(scale.inverse)
    assert scale.step > 0
    integer = np.rint(np.float32(value) * scale.inverse)
    assert 0 <= integer <= 127
    assert integer == 127 or value < 1e-35


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(InputError, match="value 'v' becomes NaN or infinite"):
        histogram_of([1.0, value, 2.0])
