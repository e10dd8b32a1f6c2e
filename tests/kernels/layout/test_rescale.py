"""rescale.cu against numpy: factors of images, pairs and float16 to the last bit, whatever lies in the images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.layout.test_convert import encoded
from tests.support.kernel_harness import Array, Bench, assert_same_bits, normal, seeded, stored
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.op_kernels.base import Rescaling
from vgg16gpu.compiler.op_kernels.layout import rescale
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DType, Layout, TensorDesc

SHAPES = ((1, 3, 5, 4), (2, 64, 3, 3), (3, 70, 33, 40), (2, 9, 1, 1), (4, 130, 2, 7))


@dataclass(frozen=True, eq=False)
class Rescaled:
    """What the kernels left."""

    halves: npt.NDArray[np.float16]  # the planes as they are stored
    factors: Array  # of x
    of_results: Array
    maxima: Array


def rescaled(
    device: Device, x: Array, growth: int = 0, exponent: int = 15, element: DType = DType.F16_PAIR
) -> Rescaled:
    bench = Bench(device)
    before = TensorDesc("x", x.shape, Layout.NHWC, bench.put(stored(x)))
    maxima, bound = (bench.put(np.zeros(len(x), np.float32)) for _ in range(2))
    factors = bench.room(rescale.factors_nbytes(len(x)))
    room = TensorDesc("x", x.shape, Layout.NHWC, before.pointer, element, factor=factors)
    after = replace(room, pointer=bench.room(room.nbytes))
    how = Rescaling((bound,), exponent, growth)
    steps = (rescale.largest(before, bound), rescale.rescale(before, after, how, maxima))
    for one in steps:
        arguments(one)
    bench.run(*steps)
    both = bench.get(factors, (2, len(x)))
    assert_same_bits(bench.get(rescale.of_results(factors, len(x)), (len(x),)), both[1])
    halves = bench.get(after.pointer, (element.planes, *after.stored_shape), np.float16)
    return Rescaled(halves, both[0], both[1], bench.get(maxima, (len(x),)))


def per_image(factors: Array) -> Any:
    return factors[:, None, None, None]


@pytest.mark.sanitize
@pytest.mark.parametrize("growth", [0, 7, -3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_image_is_brought_to_below_two_to_the_15(device: Device, shape: tuple[int, ...], growth: int) -> None:
    x = normal(seeded(f"rescale {shape}"), *shape)
    for n in range(shape[0]):
        x[n] *= np.float32(10.0 ** (7 * n - 12))
    x[:, -1, -1, -1] *= 16
    found = rescaled(device, x, growth)
    assert (np.frexp(found.factors)[0] == 0.5).all()
    assert_same_bits(found.of_results, found.factors * np.float32(2.0**-growth))
    scaled = x * per_image(found.factors)
    largest = np.abs(scaled).reshape(len(x), -1).max(1)
    assert ((largest >= 2.0**14) & (largest < 2.0**15)).all()
    expected = encoded(stored(scaled, DType.F16_PAIR), DType.F16_PAIR)
    np.testing.assert_array_equal(found.halves.view(np.uint16), expected.view(np.uint16))
    assert_same_bits(found.maxima, largest.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("exponent", [15, 6])
def test_float16_of_images_that_are_brought_to_their_range(device: Device, exponent: int) -> None:
    x = normal(seeded("rescale to float16"), 3, 70, 5, 4, scale=1e-6)
    x[1] *= 1e-3
    found = rescaled(device, x, exponent=exponent, element=DType.F16)
    scaled = x * per_image(found.factors)
    assert (np.frexp(np.abs(scaled).reshape(3, -1).max(1))[1] == exponent).all()
    np.testing.assert_array_equal(found.halves[0], stored(scaled, DType.F16).astype(np.float16))
    assert_same_bits(found.of_results, found.factors)


def test_what_has_no_power(device: Device) -> None:
    """Zeros are in range, what is no number is not, and what cannot be brought there shows that it is small."""
    x = np.zeros((6, 4, 3, 3), np.float32)
    x[1:, 1, 1, 1] = np.inf, np.nan, 1e-45, 3e38, -1e-30
    x[2, 0, 0, 0] = np.inf
    found = rescaled(device, x)
    np.testing.assert_array_equal(found.factors[:5], [1, 1, 1, 2.0**126, 2.0 ** (15 - 128)])
    np.testing.assert_array_equal(found.maxima[:3], [2.0**14, np.inf, np.nan])
    assert found.maxima[3] == np.float32(1e-45) * np.float32(2.0**126) < 8
    assert (found.maxima[4:] >= 2.0**14).all()
    assert not found.halves[:, 0].any()


@pytest.mark.parametrize("growth", [60, -60])
def test_factors_stay_finite(device: Device, growth: int) -> None:
    x = np.zeros((2, 4, 1, 1), np.float32)
    x[:, 0, 0, 0] = 1e-38, 3e38
    found = rescaled(device, x, growth)
    for factors in (found.factors, found.of_results):
        assert (np.frexp(factors)[0] == 0.5).all()
        assert (np.abs(np.log2(factors)) <= 126).all()
