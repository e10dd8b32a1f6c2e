"""kernels/lab/gemm_basic.cu against float64, in every block that is offered."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.variants.gemm_basic import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("problem", random_problems("gemm-basic", 8), ids=problem_id)
def test_random_shapes(device: Device, problem: Problem, block: int) -> None:
    check(device, VARIANT, problem, {"block": block})


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", random_problems("gemm-basic small", 3, height=9, width=7, kernel=3), ids=problem_id)
def test_small(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)
