"""What the two kernels with an even halo are asked alike."""

from __future__ import annotations

from vgg16gpu.devices.cuda import CudaDevice
from vgg16gpu.lab.halo import tile_nbytes
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import Trial
from vgg16gpu.lab.variant import Variant

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


def check_shared_memory(gpu: CudaDevice, variant: Variant, problem: Problem, tiles: int) -> None:
    """What `refuses` goes by is what the compiler takes."""
    with Trial(gpu, variant, problem) as trial:
        (step,) = trial.steps
        assert gpu.resources(step.kernel).shared_nbytes == tiles * tile_nbytes(problem, trial.parameters)
