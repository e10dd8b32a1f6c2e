"""gemm_shared.cu, and gemm_named.cu beside it: tiles along each side; nobody multiplies for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.faults.edited import Fault
from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant
from vgg16gpu_lab.variants.gemm import gemm_named
from vgg16gpu_lab.variants.gemm.gemm_shared import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]
BOTH = (VARIANT, *gemm_named.VARIANTS)
GUARD = "    if (output < OC && pixel < pixels) {\n      UNROLL"
SEEN = "if (output >= OC || pixel >= pixels) y[-1] = 0.f;"  # what a thread without an output would do at each product
TAP = "filters[ty][tap], matrix[tap][tx], sum);"
ONE_OUTPUT = Problem(1, 3, 9, 7, 1, padding=1)


@pytest.mark.parametrize("block", BLOCKS)
def test_several_tiles_along_each_side(device: Device, block: int) -> None:
    check(device, VARIANT, Problem(2, 2, 5, block + 3, 2 * block + 1, kernel=5, padding=2), {"block": block})


@pytest.mark.parametrize("variant", BOTH, ids=lambda variant: variant.name)
def test_a_thread_without_an_output_multiplies_nothing(device: Device, tmp_path: Path, variant: Variant) -> None:
    """As theirs (S2 3.2.2 and 3.2.3): with one output channel all rows of threads but the first only fetch."""
    told = Fault(variant, "sum = fmaf(", f"{SEEN} sum = fmaf(", ONE_OUTPUT)
    if variant is VARIANT:
        told = replace(told, old="tap++) sum = fmaf(", new=f"tap++) {{ {SEEN} sum = fmaf(")
        told = replace(told, old=told.old + TAP, new=told.new + TAP + " }")
    with Trial(device, told.planted(tmp_path), ONE_OUTPUT) as trial:
        assert trial.error() < 1e-6
        assert trial.trespass() == ""
    unguarded = replace(told, variant=told.planted(tmp_path), old=GUARD, new="    {\n      UNROLL")
    with Trial(device, unguarded.planted(tmp_path / "unguarded"), ONE_OUTPUT) as trial:
        trial.run()
        assert trial.trespass() == "behind weight"
