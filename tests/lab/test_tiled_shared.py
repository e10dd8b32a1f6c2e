"""kernels/lab/tiled_shared.cu against float64."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import RefusedError, Trial
from vgg16gpu.lab.variants.tiled_shared import VARIANTS

(VARIANT,) = VARIANTS
PROBLEMS = random_problems("tiled_shared", 10)
SMALL = (Problem(2, 3, 9, 7, 5, padding=1), Problem(1, 2, 8, 19, 3, kernel=4, stride=2, padding=2))


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_id)
def test_random_shapes(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", SMALL, ids=problem_id)
def test_small_shapes(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


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
