"""kernels/general/power_of_two.cu against numpy: the same powers, whatever lies in the images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.general_harness import compute_all
from tests.support.kernel_harness import normal, seeded
from vgg16gpu.compiler.graph.gradient_ops import PowerOfTwo
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError

# Less than a thread's four, parts of a slice, several slices with a part, one channel, rows of a matrix.
SHAPES = [(2, 3, 1, 1), (1, 64, 16, 16), (3, 70, 33, 40), (2, 1, 65, 64), (4, 1000), (1, 30000)]


def factors(device: Device, x: Array, exponent: int) -> Array:
    (found,) = compute_all(device, PowerOfTwo("x", "y", ("y",), exponent), [x])
    assert found.shape == (len(x), *(1,) * (x.ndim - 1))
    return found.ravel()


@pytest.mark.sanitize
@pytest.mark.parametrize("exponent", [3, -20])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors(device: Device, shape: Shape, exponent: int) -> None:
    x = -np.abs(normal(seeded("power"), *shape))
    for n in range(shape[0]):
        x[n] *= np.float32(10.0 ** (7 * n - 9))
        x[n].flat[-1] *= 64  # the last slice has the largest
    found = factors(device, x, exponent)
    largest = np.abs(x.astype(np.float64)).reshape(len(x), -1).max(1) * found
    assert (np.frexp(found)[0] == 0.5).all()
    assert (np.frexp(largest)[1] == exponent).all()


def test_powers_of_two_themselves(device: Device) -> None:
    x = np.zeros((3, 8, 4, 4), np.float32)
    x[:, 5, 2, 1] = 1.0, 2.0**-30, np.nextafter(np.float32(1), np.float32(0))
    np.testing.assert_array_equal(factors(device, x, 1), [1.0, 2.0**30, 2.0])


def test_what_has_no_power(device: Device) -> None:
    """Zeros, infinity and NaN stay as they are; the least and largest numbers get the least and largest factors."""
    x = np.zeros((6, 4, 3, 3), np.float32)
    x[1:, 1, 1, 1] = np.inf, -np.inf, np.nan, 1e-45, 3e38
    x[3, 0, 0, 0] = np.inf
    np.testing.assert_array_equal(factors(device, x, 15), [1, 1, 1, 1, 2.0**126, 2.0 ** (15 - 128)])


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"PowerOfTwo 'y': its input has shape \(2, 3, 4\)"):
        PowerOfTwo("x", "y", ("y",)).shape_of_y((2, 3, 4))
