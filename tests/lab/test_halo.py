"""kernels/lab/halo_shared.cu and halo_prefetch.cu: every width, alignment and block, and the room that tiles take."""

from __future__ import annotations

import pytest

from tests.lab.harness import check, problem_id
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda import CudaDevice
from vgg16gpu.lab.halo import tile_nbytes
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import RefusedError, Trial
from vgg16gpu.lab.variant import Variant
from vgg16gpu.lab.variants import halo_prefetch, halo_shared

VARIANTS = (*halo_shared.VARIANTS, *halo_prefetch.VARIANTS)
TILES = {"halo-shared": 1, "halo-prefetch": 2}  # in shared memory
# Rows that can be copied by 16 bytes, for each place at which a tile may begin; rows that cannot.
ALIGNMENTS = (
    *(Problem(1, 2, 11, 36, 3, padding=padding) for padding in range(4)),
    *(Problem(1, 2, 11, width, 3, padding=1) for width in (33, 34, 35)),
    Problem(1, 2, 13, 4, 3, kernel=6, padding=5),  # an image of one group of 4 columns
    Problem(1, 2, 13, 3, 3, kernel=6, padding=5),
    Problem(1, 6, 24, 32, 6, kernel=6),
)
BLOCKS = (
    *({"block_x": columns, "block_y": rows} for columns in (8, 16, 32) for rows in (4, 8)),
    {"outputs": 4},
    {"outputs": 16},
    {"block_x": 4, "block_y": 1, "outputs": 3},
)
SMALL = (
    Problem(2, 3, 7, 12, 3, padding=1),
    Problem(1, 2, 9, 11, 2, kernel=4, stride=2, padding=2),
)

both = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


@both
@pytest.mark.parametrize("problem", ALIGNMENTS, ids=problem_id)
def test_widths_and_paddings(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@both
@pytest.mark.parametrize("parameters", BLOCKS, ids=str)
def test_blocks(device: Device, variant: Variant, parameters: dict[str, int]) -> None:
    check(device, variant, Problem(2, 3, 21, 44, 11, kernel=5, stride=2, padding=1), parameters)


@both
def test_tiles_that_do_not_fit_are_refused(device: Device, variant: Variant) -> None:
    problem, large = Problem(1, 1, 99, 99, 1, kernel=9, stride=4), {"block_x": 64, "block_y": 16}
    with pytest.raises(RefusedError, match=r"tiles take .* bytes of shared memory, there are 49,152"):
        Trial(device, variant, problem, large)
    with pytest.raises(RefusedError, match="'block_x' is 6"):
        Trial(device, variant, problem, {"block_x": 6})


@pytest.mark.gpu
@both
@pytest.mark.parametrize("problem", ALIGNMENTS[:3], ids=problem_id)
def test_the_room_of_the_tiles_is_known(gpu: CudaDevice, variant: Variant, problem: Problem) -> None:
    """What `refuses` goes by is what the compiler takes."""
    with Trial(gpu, variant, problem) as trial:
        (step,) = trial.steps
        assert gpu.resources(step.kernel).shared_nbytes == TILES[variant.name] * tile_nbytes(problem, trial.parameters)


@pytest.mark.sanitize
@both
@pytest.mark.parametrize("problem", SMALL, ids=problem_id)
def test_rows_copied_by_fours_and_one_by_one(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)
