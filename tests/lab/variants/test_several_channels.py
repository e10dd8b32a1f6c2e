"""lab/kernels/lab/direct/several_channels.cu: groups of output channels, whole and not."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.several_channels import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("per_thread", [*VARIANT.parameters["per_thread"], 1, 3])
@pytest.mark.parametrize("problem", random_problems("per_thread", 3, kernel=3, stride=2), ids=problem_id)
def test_counts_per_thread(device: Device, problem: Problem, per_thread: int) -> None:
    check(device, VARIANT, problem, {"per_thread": per_thread})


@pytest.mark.parametrize("outputs", [1, 3, 4, 5, 8])
def test_groups_that_are_not_full(device: Device, outputs: int) -> None:
    check(device, VARIANT, Problem(2, 2, 6, 9, outputs))
