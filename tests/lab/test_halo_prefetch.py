"""kernels/lab/halo_prefetch.cu against float64: every width, alignment and block, and the room that its tiles take."""

from __future__ import annotations

import pytest

from tests.lab.halo_cases import ALIGNMENTS, BLOCKS, SMALL, check_shared_memory
from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda import CudaDevice
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import RefusedError, Trial
from vgg16gpu.lab.variants.halo_prefetch import VARIANTS

(VARIANT,) = VARIANTS


@pytest.mark.parametrize("problem", random_problems("halo_prefetch", 10), ids=problem_id)
def test_random_problems(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.parametrize("problem", ALIGNMENTS, ids=problem_id)
def test_widths_and_paddings(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)


@pytest.mark.parametrize("parameters", BLOCKS, ids=str)
def test_blocks(device: Device, parameters: dict[str, int]) -> None:
    check(device, VARIANT, Problem(2, 3, 21, 44, 11, kernel=5, stride=2, padding=1), parameters)


def test_tiles_that_do_not_fit_are_refused(device: Device) -> None:
    problem, large = Problem(1, 1, 99, 99, 1, kernel=9, stride=4), {"block_x": 64, "block_y": 16}
    with pytest.raises(RefusedError, match=r"tiles take .* bytes of shared memory, there are 49,152"):
        Trial(device, VARIANT, problem, large)
    with pytest.raises(RefusedError, match="'block_x' is 6"):
        Trial(device, VARIANT, problem, {"block_x": 6})


@pytest.mark.gpu
@pytest.mark.parametrize("problem", ALIGNMENTS[:3], ids=problem_id)
def test_the_room_of_the_tiles_is_known(gpu: CudaDevice, problem: Problem) -> None:
    check_shared_memory(gpu, VARIANT, problem, tiles=2)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", SMALL, ids=problem_id)
def test_small_problems(device: Device, problem: Problem) -> None:
    check(device, VARIANT, problem)
