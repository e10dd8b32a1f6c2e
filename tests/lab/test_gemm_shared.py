"""kernels/lab/gemm_shared.cu: several tiles along each side."""

from __future__ import annotations

import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.variants.gemm_shared import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]


@pytest.mark.parametrize("block", BLOCKS)
def test_several_tiles_along_each_side(device: Device, block: int) -> None:
    check(device, VARIANT, Problem(2, 2, 5, block + 3, 2 * block + 1, kernel=5, padding=2), {"block": block})
