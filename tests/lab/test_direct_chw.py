"""kernels/lab/direct_chw.cu against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import Trial
from vgg16gpu.lab.variant import variants
from vgg16gpu.lab.variants.direct_chw import VARIANTS

(VARIANT,) = VARIANTS
PROBLEMS = random_problems("direct_chw", 10)
SMALL = (Problem(2, 3, 9, 7, 5, padding=1), Problem(1, 2, 8, 19, 3, kernel=4, stride=2, padding=2))


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_id)
def test_random_shapes(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", SMALL, ids=problem_id)
def test_small_shapes(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.parametrize("block", [*VARIANT.parameters["block"], 1, 5])
def test_blocks(device: Device, block: int) -> None:
    check(device, VARIANT, Problem(2, 3, 33, 16, 4, padding=1), {"block": block})


@pytest.mark.parametrize(
    "other", ["direct-rows", "direct-planes", "several-outputs", "several-channels", "tiled-shared"]
)
def test_others_compute_the_same_bits(device: Device, other: str) -> None:
    """Their mapping differs, not the order of the sums."""
    (variant,) = (variant for variant in variants() if variant.name == other)
    problem = Problem(2, 3, 20, 37, 5, padding=1)
    with Trial(device, VARIANT, problem) as ours, Trial(device, variant, problem) as theirs:
        np.testing.assert_array_equal(ours.run(), theirs.run())
