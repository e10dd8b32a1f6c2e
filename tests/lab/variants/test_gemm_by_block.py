"""gemm_by_block.py: never timed in blocks that cannot be launched; basic under another name."""

from __future__ import annotations

import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import InvalidLaunchError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants.gemm import gemm_basic
from vgg16gpu_lab.variants.gemm.gemm_by_block import VARIANTS

(VARIANT,) = VARIANTS


def test_the_published_block_of_64_never_ran(device: Device) -> None:
    """0.003 ms is what it takes to be turned down."""
    assert 64 in VARIANT.parameters["block"]
    launches = device.counters.launches
    with pytest.raises(InvalidLaunchError, match="a block of 64x64x1 is 4096 threads, at most 1024 can be launched"):
        Trial(device, VARIANT, Problem(1, 3, 256, 256, 1), {"block": 64})
    assert device.counters.launches == launches


def test_it_is_the_basic_product_again() -> None:
    problem = Problem(1, 3, 64, 64, 4)
    where, _ = places(problem, VARIANT.workspace_nbytes(problem, {"block": 16}))
    (basic,) = gemm_basic.VARIANTS
    assert VARIANT.launches(problem, {"block": 16}, where) == basic.launches(problem, {"block": 16}, where)
