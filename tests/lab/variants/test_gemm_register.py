"""lab/kernels/lab/gemm/gemm_register.cu against float64, in every block and tile that fit into the registers."""

from __future__ import annotations

import itertools

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.gemm.gemm_register import VARIANTS

(VARIANT,) = VARIANTS
ANY = Problem(1, 3, 16, 16, 1)
SHAPES = [dict(zip(("block", "tile"), pair, strict=True)) for pair in itertools.product((8, 16, 32), (1, 2, 4, 8))]
FITTING = [shape for shape in SHAPES if not VARIANT.refuses(ANY, shape)]
fitting = pytest.mark.parametrize("shape", FITTING, ids=lambda shape: "{block}x{tile}".format(**shape))


@fitting
@pytest.mark.parametrize("problem", random_problems("gemm-register", 5), ids=problem_id)
def test_random_shapes(device: Device, problem: Problem, shape: dict[str, int]) -> None:
    check(device, VARIANT, problem, shape)


@fitting
def test_several_tiles_along_each_side(device: Device, shape: dict[str, int]) -> None:
    edge = shape["block"] * shape["tile"]
    check(device, VARIANT, Problem(2, 2, 5, edge + 3, 2 * edge + 1, padding=1), shape)


def test_more_sums_than_registers_are_refused(device: Device) -> None:
    assert {(shape["block"], shape["tile"]) for shape in SHAPES if shape not in FITTING} == {(32, 8)}
    with pytest.raises(RefusedError, match="a tile of 8x8 needs about 104 registers, each of 32x32 threads gets 64"):
        Trial(device, VARIANT, ANY, {"block": 32, "tile": 8})
    assert "needs about 279 registers, each of 4x4 threads gets 255" in VARIANT.refuses(ANY, {"block": 4, "tile": 15})
    assert VARIANT.refuses(ANY, {"block": 16, "tile": 0}) == "tile=0: a thread has at least 1 output"
