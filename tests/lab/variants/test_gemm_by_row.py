"""lab/kernels/lab/gemm/gemm_by_row.cu: a thread for each output channel."""

from __future__ import annotations

import pytest

from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants.gemm.gemm_by_row import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("outputs", [1, 64])
def test_a_thread_for_each_output_channel(outputs: int) -> None:
    """However large the image is: what is launched beyond that leaves at once."""
    problem = Problem(1, 3, 4096, 4096, outputs)
    where, _ = places(problem, 0)
    (step,) = VARIANT.launches(problem, {"block": 16}, where).compute
    assert step.grid.x * step.block.x == -(-outputs // 16) * 16
    assert step.grid[1:] == (1, 1)
