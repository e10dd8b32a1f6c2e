"""lab/kernels/lab/direct/constant_weights.cu: as many weights as fit, and no more."""

from __future__ import annotations

import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.constant_weights import VARIANTS

(VARIANT,) = VARIANTS
FULL = Problem(1, 64, 5, 6, 256, kernel=1)  # 64 KiB of weights


def test_as_many_weights_as_fit(device: Device) -> None:
    check(device, VARIANT, FULL)


def test_one_weight_more_is_refused(device: Device) -> None:
    for problem in (Problem(1, 65, 5, 6, 253, kernel=1), Problem(1, 64, 5, 6, 257, kernel=1)):
        with pytest.raises(RefusedError, match=r"the weights take .* bytes, constant memory holds 65,536"):
            Trial(device, VARIANT, problem)


def test_trials_with_other_weights_follow_each_other(device: Device) -> None:
    """They share one array: each fills it anew."""
    first, second = Problem(1, 2, 9, 9, 3), Problem(1, 3, 9, 9, 2)
    for problem in (first, second, first):
        check(device, VARIANT, problem)
