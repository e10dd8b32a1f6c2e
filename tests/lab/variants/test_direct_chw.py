"""lab/kernels/lab/direct/direct_chw.cu: other mappings of threads compute the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants
from vgg16gpu_lab.variants.direct.direct_chw import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize(
    "other", ["direct-published", "direct-rows", "direct-planes", "several-outputs", "several-channels", "tiled-shared"]
)
def test_others_compute_the_same_bits(device: Device, other: str) -> None:
    """Their mapping differs, not the order of the sums."""
    (variant,) = (variant for variant in variants() if variant.name == other)
    problem = Problem(2, 3, 20, 37, 5, padding=1)
    with Trial(device, VARIANT, problem) as ours, Trial(device, variant, problem) as theirs:
        np.testing.assert_array_equal(ours.run(), theirs.run())
