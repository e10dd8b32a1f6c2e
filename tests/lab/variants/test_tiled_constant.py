"""tiled_constant.cu: the same bits as with weights from global memory, and what fits neither memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu.program.values import Pointer
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct import tiled_shared
from vgg16gpu_lab.variants.direct.tiled_constant import VARIANTS

(VARIANT,) = VARIANTS
(TILED,) = tiled_shared.VARIANTS


@pytest.mark.parametrize("tile", [*VARIANT.parameters["tile"], 5])
def test_the_same_bits_as_with_weights_from_global_memory(device: Device, tile: int) -> None:
    problem = Problem(2, 3, 35, 34, 4, kernel=5, padding=2, bias=True)
    with (
        Trial(device, VARIANT, problem, {"tile": tile}) as ours,
        Trial(device, TILED, problem, {"tile": tile}) as other,
    ):
        np.testing.assert_array_equal(ours.run(), other.run())


def test_no_thread_gets_the_address_of_the_weights(device: Device) -> None:
    """They are copied to constant memory before the launch, all 64 KiB if need be."""
    problem = Problem(1, 64, 5, 6, 256, kernel=1)
    check(device, VARIANT, problem)
    with Trial(device, VARIANT, problem) as trial:
        weights = trial.launches.constants["weight"]
        (step,) = trial.launches.compute
        assert isinstance(weights, Pointer)
        assert weights not in step.arguments


def test_trials_with_other_weights_follow_each_other(device: Device) -> None:
    """They share one array: each fills it anew."""
    first, second = Problem(1, 2, 9, 9, 3, bias=True), Problem(1, 3, 9, 9, 2)
    for problem in (first, second, first):
        check(device, VARIANT, problem)


def test_what_does_not_fit_is_refused(device: Device) -> None:
    with pytest.raises(RefusedError, match=r"the weights take .* bytes, constant memory holds 65,536"):
        Trial(device, VARIANT, Problem(1, 64, 5, 6, 257, kernel=1))
    with pytest.raises(RefusedError, match=r"takes more than 48 KiB; take a smaller 'tile'"):
        Trial(device, VARIANT, Problem(1, 2, 50, 50, 1, stride=4), {"tile": 32})
