"""lab/kernels/lab/direct/tiled_shared.cu: tiles that fill and do not, and those that are too large."""

from __future__ import annotations

import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.tiled_shared import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("tile", [*VARIANT.parameters["tile"], 1, 5])
@pytest.mark.parametrize("size", [32, 35], ids=lambda size: f"{size}x{size - 1}")
def test_tiles(device: Device, size: int, tile: int) -> None:
    """Outputs that fill whole tiles, and such that do not."""
    check(device, VARIANT, Problem(2, 3, size, size - 1, 2, padding=1), {"tile": tile})


@pytest.mark.parametrize(("stride", "kernel", "fits"), [(3, 17, True), (3, 18, False), (4, 3, False)])
def test_a_tile_that_is_too_large_is_refused(device: Device, stride: int, kernel: int, fits: bool) -> None:
    """The largest that is not refused, 110 x 110 floats, runs."""
    problem = Problem(1, 2, 50, 50, 1, kernel=kernel, stride=stride)
    if fits:
        check(device, VARIANT, problem, {"tile": 32})
    else:
        with pytest.raises(RefusedError, match=r"takes more than 48 KiB; take a smaller 'tile'"):
            Trial(device, VARIANT, problem, {"tile": 32})
