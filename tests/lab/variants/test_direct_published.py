"""lab/kernels/lab/direct/direct_published.cu: both faults are really there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants.direct.direct_published import VARIANTS

(VARIANT,) = VARIANTS


def test_the_sum_after_every_channel_is_stored_and_the_last_twice(device: Device) -> None:
    """C + 1 stores of an output, as theirs: the last plane is the answer, and y is."""
    problem = Problem(2, 4, 9, 20, 3)
    planes = np.empty((problem.channels, *problem.y_shape), np.float32)
    x, weight = problem.random()
    with Trial(device, VARIANT, problem, inputs=(x, weight)) as trial:
        y = trial.run()
        device.copy_out(planes, trial._at(trial._places.workspace))
        device.synchronize()
    for done in range(1, problem.channels + 1):
        expected = replace(problem, channels=done).expected(x[:, :done], weight[:, :done])
        np.testing.assert_allclose(planes[done - 1], expected, rtol=0, atol=1e-5)
    assert np.array_equal(planes[-1], y)


@pytest.mark.parametrize("channels", [1, 2, 7])
def test_room_for_every_plane(channels: int) -> None:
    problem = Problem(2, channels, 5, 6, 3)
    assert VARIANT.workspace_nbytes(problem, {}) == 4 * channels * 2 * 3 * 3 * 4


def test_the_grid_walks_rows_first() -> None:
    problem, parameters = Problem(1, 3, 10, 70, 1), VARIANT.with_defaults({})
    where, _ = places(problem, VARIANT.workspace_nbytes(problem, parameters))
    (step,) = VARIANT.launches(problem, parameters, where).compute
    assert tuple(step.grid) == (1, 5, 1)  # 8 rows, 68 columns, 16 of each in a block
