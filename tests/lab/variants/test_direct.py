"""lab/kernels/lab/direct: what does not fit is refused, constant memory; the published fault is really there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Pointer
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants

DIRECT = {variant.name: variant for variant in variants()}


@pytest.mark.parametrize(("name", "first"), [("direct-planes", 1), ("direct-published", 0)])
def test_the_sum_after_each_channel_is_stored(device: Device, name: str, first: int) -> None:
    """The fault is really there: planes that nobody reads, of the published kernel also the last."""
    problem = Problem(2, 4, 9, 20, 3)
    planes = np.empty((problem.channels - first, *problem.y_shape), np.float32)
    assert DIRECT[name].workspace_nbytes(problem, {}) == planes.nbytes
    x, weight = problem.random()
    with Trial(device, DIRECT[name], problem, inputs=(x, weight)) as trial:
        y = trial.run()
        device.copy_out(planes, trial._at(trial._places.workspace))
        device.synchronize()
    for done, plane in enumerate(planes, start=1):
        expected = replace(problem, channels=done).expected(x[:, :done], weight[:, :done])
        np.testing.assert_allclose(plane, expected, rtol=0, atol=1e-5)
    assert np.array_equal(planes[-1], y) is (first == 0)


def test_a_tile_that_is_too_large_is_refused(device: Device) -> None:
    """The largest that is not refused has 110 x 110 floats."""
    largest = Problem(1, 2, 50, 50, 1, kernel=17, stride=3)
    for name in ("tiled-shared", "tiled-constant"):
        assert not DIRECT[name].refuses(largest, {"tile": 32})
        for problem in (replace(largest, kernel=18), Problem(1, 2, 50, 50, 1, kernel=3, stride=4)):
            with pytest.raises(RefusedError, match=r"takes more than 48 KiB; take a smaller 'tile'"):
                Trial(device, DIRECT[name], problem, {"tile": 32})


@pytest.mark.first_case(reason="each variant has its float64 test")
@pytest.mark.parametrize("name", ["constant-weights", "tiled-constant"])
def test_constant_memory(device: Device, name: str) -> None:
    """As many weights as fit, 64 KiB, copied before the launch: no thread gets their address. One more is refused."""
    variant, full = DIRECT[name], Problem(1, 64, 5, 6, 256, kernel=1)
    check(device, variant, full)
    with Trial(device, variant, full) as trial:
        weights = trial.launches.constants["weight"]
        (step,) = trial.launches.compute
        assert isinstance(weights, Pointer)
        assert weights not in step.arguments
    for problem in (Problem(1, 65, 5, 6, 253, kernel=1), Problem(1, 64, 5, 6, 257, kernel=1)):
        with pytest.raises(RefusedError, match=r"the weights take .* bytes, constant memory holds 65,536"):
            Trial(device, variant, problem)
    # Trials with other weights share the array: each fills it anew
    first, second = Problem(1, 2, 9, 9, 3, kernel=1), Problem(1, 3, 9, 9, 2, kernel=1)
    for problem in (first, second, first):
        check(device, variant, problem)
