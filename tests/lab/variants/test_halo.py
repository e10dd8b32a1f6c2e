"""lab/kernels/lab/halo_*.cu: every width, alignment and block, the room that tiles take, and what a step changes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab.harness import check, problem_id
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.devices.kernel_source import include_dirs, source_path
from vgg16gpu.program.launches import Step
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

MODULES = (halo_edge, halo_even, halo_float4, halo_shared, halo_prefetch, halo_oc_outside)
VARIANTS = tuple(variant for module in MODULES for variant in module.VARIANTS)
(PUBLISHED,) = halo_published.VARIANTS
ANY = (*VARIANTS, PUBLISHED)
TILES = {"halo-prefetch": 2}  # in shared memory; others have one
# Rows that can be copied by 16 bytes, for each place at which a tile may begin; rows that cannot.
ALIGNMENTS = (
    *(Problem(1, 2, 11, 36, 3, padding=padding) for padding in range(4)),
    *(Problem(1, 2, 11, width, 3, padding=1) for width in (33, 34, 35)),
    Problem(1, 2, 13, 4, 3, kernel=6, padding=5),  # an image of one group of 4 columns
)
BLOCKS = ({"block_x": 4, "block_y": 8}, {"block_x": 32, "block_y": 4}, {"block_x": 4, "block_y": 1, "outputs": 3})
SMALL = (
    Problem(2, 3, 7, 12, 3, padding=1),
    Problem(1, 2, 9, 11, 2, kernel=4, stride=2, padding=2),
)

each = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
any_of_them = pytest.mark.parametrize("variant", ANY, ids=lambda variant: variant.name)


@any_of_them
@pytest.mark.parametrize("problem", ALIGNMENTS, ids=problem_id)
def test_widths_and_paddings(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [(variant, values) for variant in VARIANTS for values in BLOCKS if set(values) <= set(variant.parameters)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_blocks(device: Device, variant: Variant, parameters: dict[str, int]) -> None:
    check(device, variant, Problem(2, 3, 21, 44, 11, kernel=5, stride=2, padding=1), parameters)


@each
def test_tiles_that_do_not_fit_are_refused(device: Device, variant: Variant) -> None:
    problem, large = Problem(1, 1, 99, 99, 1, kernel=9, stride=4), {"block_x": 64, "block_y": 16}
    with pytest.raises(RefusedError, match=r"tiles take .* bytes of shared memory, there are 49,152"):
        Trial(device, variant, problem, large)
    with pytest.raises(RefusedError, match="'block_x' is 6"):
        Trial(device, variant, problem, {"block_x": 6})


@pytest.mark.gpu
@each
@pytest.mark.parametrize("problem", ALIGNMENTS[:3], ids=problem_id)
def test_the_room_of_the_tiles_is_known(gpu: CudaDevice, variant: Variant, problem: Problem) -> None:
    """What `refuses` goes by is what the compiler takes."""
    with Trial(gpu, variant, problem) as trial:
        (step,) = trial.steps
        tiles = TILES.get(variant.name, 1)
        assert gpu.resources(step.kernel).shared_nbytes == tiles * tile_nbytes(problem, trial.parameters)


@pytest.mark.sanitize
@any_of_them
@pytest.mark.parametrize("problem", SMALL, ids=problem_id)
def test_rows_copied_by_fours_and_one_by_one(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@pytest.mark.parametrize(("height", "width"), [(3, 3), (6, 9), (10, 6), (17, 9), (18, 10), (19, 12)])
def test_the_last_published_block_covers_the_rest(device: Device, height: int, width: int) -> None:
    """Outputs of less than a block, of whole ones, of one more and of one less."""
    check(device, PUBLISHED, Problem(2, 3, height, width, 2))


def test_a_published_tile_that_does_not_fit_is_refused(device: Device) -> None:
    with pytest.raises(RefusedError, match=r"its tile takes .* bytes of shared memory, there are 49,152"):
        Trial(device, PUBLISHED, Problem(1, 1, 99, 99, 1, kernel=3, stride=12), {})


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


def launched(case: Case) -> Step:
    variant = next(found for found in VARIANTS if found.name == case.variant)
    parameters = variant.with_defaults(case.parameters)
    (step,) = variant.launches(case.problem, parameters, places(case.problem, 0)[0]).compute
    return step


@pytest.mark.slow(reason="of sources that seldom change; test_the_steps_stand_beside_each_other has the launches")
@pytest.mark.parametrize(
    ("name", "singles", "fours", "barriers"),
    [("halo_edge", True, False, 2), ("halo_even", True, False, 2), ("halo_float4", True, True, 2)],
)
def test_what_the_machine_code_has(tmp_path: Path, name: str, singles: bool, fours: bool, barriers: int) -> None:
    """Only the step with float4 has 16-byte copies (beside single ones, for rows of other lengths)."""
    text = ptx(name, tmp_path)
    assert ("cp.async.ca.shared.global" in text) is singles
    assert ("cp.async.cg.shared.global" in text) is fours
    assert len(re.findall(r"\bbar\.sync|\bbarrier\.sync", text)) == barriers


def ptx(name: str, folder: Path) -> str:
    compiler = shutil.which("nvcc") or pytest.skip("no nvcc")
    file = folder / f"{name}.ptx"
    options = ["-arch=sm_90", "-ptx", "-DKSIZE=6", "-DBLOCK_X=4", "-DBLOCK_Y=8", "-o", str(file)]
    command = [compiler, *options, *(f"-I{path}" for path in include_dirs()), str(source_path(f"lab/{name}.cu"))]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return file.read_text()
