"""lab/kernels/lab/winograd.cu: odd and even sizes, each tap, and what it does not do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.winograd import VARIANTS

(VARIANT,) = VARIANTS


def test_odd_and_even_sizes(device: Device) -> None:
    for size in ((1, 1), (1, 2), (2, 1), (3, 3), (2, 30), (31, 2)):
        check(device, VARIANT, Problem(2, 3, *size, 9, padding=1))


def test_each_tap_alone_moves_the_image_and_is_exact(device: Device) -> None:
    """Small integers: the transforms halve and add up without rounding."""
    problem = Problem(1, 1, 7, 6, 9, padding=1)
    x = np.arange(42, dtype=np.float32).reshape(problem.x_shape)
    weight = np.eye(9, dtype=np.float32).reshape(problem.weight_shape)
    with Trial(device, VARIANT, problem, inputs=(x, weight)) as trial:
        assert np.array_equal(trial.run(), problem.expected(x, weight))


def test_other_kernels_strides_and_filters_are_refused(device: Device) -> None:
    for other in ({"kernel": 5}, {"kernel": 1}, {"stride": 2}):
        with pytest.raises(RefusedError, match=r"winograd: F\(2x2,3x3\) does 3x3 kernels at stride 1"):
            Trial(device, VARIANT, Problem(1, 1, 9, 9, 1, **other))
    with pytest.raises(RefusedError, match="'outputs' is 6"):
        Trial(device, VARIANT, Problem(1, 1, 9, 9, 1), {"outputs": 6})
