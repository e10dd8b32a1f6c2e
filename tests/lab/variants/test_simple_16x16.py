"""lab/kernels/lab/direct/simple_16x16.cu: sizes about that of a block."""

from __future__ import annotations

import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.direct.simple_16x16 import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("size", [16, 17, 32])
def test_sizes_about_a_block(device: Device, size: int) -> None:
    check(device, VARIANT, Problem(1, 1, size, size, 1, kernel=5, padding=2))
