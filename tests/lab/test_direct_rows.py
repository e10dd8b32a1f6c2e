"""kernels/lab/direct_rows.cu against float64."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.variants.direct_rows import VARIANTS

(VARIANT,) = VARIANTS
PROBLEMS = random_problems("direct_rows", 10)
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
