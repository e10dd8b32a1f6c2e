"""lab/kernels/lab/halo_*.cu: every width and alignment, the room that tiles take, and what a step changes."""

from __future__ import annotations

import pytest

from tests.lab.harness import check
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu_lab.experiment import Case, Choice
from vgg16gpu_lab.experiments import s4
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant, places
from vgg16gpu_lab.variants.halo import (
    halo_edge,
    halo_even,
    halo_float4,
    halo_oc_outside,
    halo_prefetch,
    halo_published,
    halo_shared,
)
from vgg16gpu_lab.variants.halo.launches import tile_nbytes

MODULES = (halo_float4, halo_edge, halo_even, halo_shared, halo_prefetch, halo_oc_outside)
VARIANTS = tuple(variant for module in MODULES for variant in module.VARIANTS)
(PUBLISHED,) = halo_published.VARIANTS
TILES = {"halo-prefetch": 2}  # in shared memory; others have one
# Rows that can be copied by 16 bytes, for each place at which a tile may begin; rows that cannot.
WIDTHS = tuple(Problem(1, 2, 11, width, 3, padding=1) for width in (33, 34, 35, 36))
PADDINGS = (
    *(Problem(1, 2, 11, 36, 3, padding=padding) for padding in (0, 2, 3)),
    Problem(1, 2, 13, 4, 3, kernel=6, padding=5),  # an image of one group of 4 columns
)


@pytest.mark.first_case(reason="test_variants.py has a row of fours and another with each")
@pytest.mark.parametrize("variant", [*VARIANTS, PUBLISHED], ids=lambda variant: variant.name)
@pytest.mark.parametrize("problems", [WIDTHS, PADDINGS], ids=["widths", "paddings"])
def test_widths_and_paddings(device: Device, variant: Variant, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        check(device, variant, problem)


@pytest.mark.first_case(reason="a sweep of blocks; each variant runs with its usual one")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_blocks(device: Device, variant: Variant) -> None:
    parameters = {"block_x": 4, "block_y": 1, "outputs": 3}
    given = {name: value for name, value in parameters.items() if name in variant.parameters}
    check(device, variant, Problem(2, 3, 21, 44, 11, kernel=5, stride=2, padding=1), given)


def test_tiles_that_do_not_fit_are_refused(device: Device) -> None:
    problem, large = Problem(1, 1, 99, 99, 1, kernel=9, stride=4), {"block_x": 64, "block_y": 16}
    for variant in VARIANTS:
        with pytest.raises(RefusedError, match=r"tiles take .* bytes of shared memory, there are 49,152"):
            Trial(device, variant, problem, large)
        with pytest.raises(RefusedError, match="'block_x' is 6"):
            Trial(device, variant, problem, {"block_x": 6})
    with pytest.raises(RefusedError, match=r"its tile takes .* bytes of shared memory, there are 49,152"):
        Trial(device, PUBLISHED, Problem(1, 1, 99, 99, 1, kernel=3, stride=12), {})


@pytest.mark.gpu
def test_the_room_of_the_tiles_is_known(gpu: CudaDevice) -> None:
    """What `refuses` goes by is what the compiler takes."""
    for variant in VARIANTS:
        with Trial(gpu, variant, WIDTHS[0]) as trial:
            (step,) = trial.steps
            tiles = TILES.get(variant.name, 1)
            assert gpu.resources(step.kernel).shared_nbytes == tiles * tile_nbytes(WIDTHS[0], trial.parameters)


# ---- One change a step


def test_the_steps_stand_beside_each_other() -> None:
    """At the published point all have the block of theirs; only what a step is about differs."""
    rows = {case.method: case for case in s4.cases(Choice("cuda")) if case.table == "conv2d"}
    made = {name: launched(rows[name]) for name in s4.STEPS}
    assert {(step.block.x, step.block.y) for step in made.values()} == {(4, 8)}
    several, alone = ("halo_channels", "halo_prefetch"), ("halo_edge", "halo_even", "halo_float4")
    assert len({step.kernel.defines for step in map(made.get, several) if step}) == 1
    assert len({step.kernel.defines for step in map(made.get, alone) if step}) == 1
    assert {name: made[name].grid.z for name in made} == dict.fromkeys(alone, 6) | dict.fromkeys(
        (*several, "halo_oc_outside"), 1
    )
    assert dict(made["halo_channels"].kernel.defines) == dict(made["halo_float4"].kernel.defines) | {"OUTPUTS": 6}
    assert len({step.kernel.source for step in made.values()}) == len(made)


def launched(case: Case) -> KernelLaunch:
    variant = next(found for found in VARIANTS if found.name == case.variant)
    parameters = variant.with_defaults(case.parameters)
    (step,) = variant.launches(case.problem, parameters, places(case.problem, 0)[0]).compute
    return step
