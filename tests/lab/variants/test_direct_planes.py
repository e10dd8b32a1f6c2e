"""lab/kernels/lab/direct/direct_planes.cu: the sums that it stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu.program.values import Pointer
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.direct_planes import VARIANTS

(VARIANT,) = VARIANTS


def test_the_sum_after_each_channel_is_stored(device: Device) -> None:
    """The fault is really there: planes that nobody reads."""
    problem = Problem(2, 4, 9, 20, 3)
    planes = np.empty((problem.channels - 1, *problem.y_shape), np.float32)
    x, weight = problem.random()
    with Trial(device, VARIANT, problem, inputs=(x, weight)) as trial:
        trial.run()
        workspace = next(step.arguments[1] for step in trial.steps)
        assert isinstance(workspace, Pointer)
        device.copy_out(planes, trial._at(workspace))
        device.synchronize()
    for done in range(1, problem.channels):
        expected = replace(problem, channels=done).expected(x[:, :done], weight[:, :done])
        np.testing.assert_allclose(planes[done - 1], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 7])
def test_room_for_every_plane_but_the_last(channels: int) -> None:
    problem = Problem(2, channels, 5, 6, 3)
    assert VARIANT.workspace_nbytes(problem, {}) == 4 * (channels - 1) * 2 * 3 * 3 * 4
