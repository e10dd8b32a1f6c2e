"""lab/kernels/lab/direct/several_outputs.cu: groups of a row's outputs, whole and not."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.several_outputs import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("per_thread", [*VARIANT.parameters["per_thread"], 1, 3])
@pytest.mark.parametrize("problem", random_problems("per_thread", 3, kernel=3, stride=2), ids=problem_id)
def test_counts_per_thread(device: Device, problem: Problem, per_thread: int) -> None:
    check(device, VARIANT, problem, {"per_thread": per_thread})


@pytest.mark.parametrize("width", [66, 67, 68, 69])
def test_rows_that_end_inside_a_group(device: Device, width: int) -> None:
    """Of 64 to 67 outputs: the last thread of a block, and the first of the next one."""
    check(device, VARIANT, Problem(1, 1, 5, width, 1))
