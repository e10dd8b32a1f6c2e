"""kernels/lab/gemm_by_row.cu against float64, in every block that is offered."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.variant import places
from vgg16gpu.lab.variants.gemm_by_row import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("problem", random_problems("gemm-by-row", 8), ids=problem_id)
def test_random_shapes(device: Device, problem: Problem, block: int) -> None:
    check(device, VARIANT, problem, {"block": block})


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "problem", random_problems("gemm-by-row small", 3, height=9, width=7, kernel=3), ids=problem_id
)
def test_small(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.parametrize(("outputs", "working"), [(1, 1), (64, 64)])
def test_a_thread_for_each_output_channel(outputs: int, working: int) -> None:
    """However large the image is: what is launched beyond that leaves at once."""
    problem = Problem(1, 3, 4096, 4096, outputs)
    where, _ = places(problem, 0)
    (step,) = VARIANT.launches(problem, {"block": 16}, where).compute
    assert step.grid.x * step.block.x == -(-working // 16) * 16
    assert step.grid[1:] == (1, 1)
