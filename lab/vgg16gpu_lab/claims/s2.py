"""What S2 claims: which block, memory mode, partition and task is best, and what the stride does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import mean
from typing import Final

from vgg16gpu_lab.claims.judge import (
    Claim,
    Finding,
    Growing,
    Judge,
    Pair,
    about,
    beside,
    between,
    compare,
    decided,
    differ,
    faster,
    growth,
    keys_of,
    missing,
    reason,
    same,
    saves,
    verdict_of,
)
from vgg16gpu_lab.claims.s2_pairs import (
    CUDNN,
    DIRECT,
    GEMM,
    SEED,
    doublings,
    edge_pairs,
    growing_tasks,
    layer_pairs,
    mode_pairs,
    partition_edge_pairs,
    register_tile_pairs,
    stride_pairs,
    task_pairs,
    task_time,
    way_pairs,
)
from vgg16gpu_lab.claims.times import Times, key, number, one, published_times
from vgg16gpu_lab.experiments.s2 import SIZES
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.published import CARDS
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants.direct.direct_hwc import VARIANTS
from vgg16gpu_lab.variants.gemm import im2col

TOO_LARGE: Final = tuple(key(SEED, "gemm_partition", size, "block", "block=64") for size in SIZES)
GAIN: Final = (0.2, 0.5)  # of cuDNN over both tasks, on average

_FALLING: Final = ((2, 1), (3, 2))


def _stride_savings() -> Iterator[Growing]:
    """Yield cases in which cuDNN's time falls by more, from stride 1 to 3, than direct's."""
    for size in SIZES:
        sides = [(task_time(task, size, 1), task_time(task, size, 3)) for task in (CUDNN, DIRECT)]
        yield Growing(str(size), sides[0], sides[1])


def _steepest() -> Judge:
    """Judge that im2col's time grows most and cuDNN's least, from 256 pixels, or 1024 if launches dominate."""
    order = (DIRECT, GEMM), (CUDNN, DIRECT)
    first, later = (growth(tuple(growing_tasks(size, 2, *order))) for size in (256, 1024))

    def find(times: Times) -> Finding:
        found = first.find(times)
        return later.find(times) if found.short else found

    return Judge((*first.keys, *later.keys), find)


def _average_gain() -> Judge:
    """Judge the mean over all sizes and strides of the time that cuDNN saves, against each task."""
    pairs = {task: tuple(task_pairs(CUDNN, task)) for task in (DIRECT, GEMM)}

    def find(times: Times) -> Finding:
        gains: dict[str, float] = {}
        for task, chosen in pairs.items():
            found, lacking = compare(chosen, times)
            counted = [1 - 1 / each.ratio for each in found if not each.is_short]
            if lacking or not counted:
                return missing(lacking or ["all too short to count"])
            gains[task] = mean(counted)
        which = tuple(task for task, gain in gains.items() if GAIN[0] <= gain <= GAIN[1])
        figure = ", ".join(f"{gain:.0%} less than {task}" for task, gain in gains.items())
        return Finding(figure, verdict_of("every", len(which), 0, len(gains)), len(which), len(gains), which)

    return Judge(keys_of(pair for chosen in pairs.values() for pair in chosen), find)


def _launch_that_fails() -> Judge:
    """Judge whether blocks of 64x64 ran at all, and then whether they are the fastest."""
    pairs = [Pair(name[2], one(*name), one(SEED, "gemm_partition", name[2], "block", "block=32")) for name in TOO_LARGE]
    ran = faster(pairs)

    def find(times: Times) -> Finding:
        invalid = [times[name] for name in TOO_LARGE if times[name].status == Status.INVALID]
        if invalid:
            figure = f"invalid launch, {len(invalid)} of {len(TOO_LARGE)} sizes: {reason(invalid[0])}"
            return decided(figure, does=False)
        return ran.find(times)

    return Judge(ran.keys, find)


def _beyond_their_card() -> Finding:
    """Judge that their times are less than their card takes to move the arrays once."""
    percents = []
    for name in TOO_LARGE:
        milliseconds, size = published_times()[name].value, int(name[2])
        if milliseconds:
            percents.append(CARDS[SEED].percent(Problem(1, 3, size, size, 1, padding=1), milliseconds / 1e3))
    if not percents:
        return missing(["not published"])
    figure = f"{number(min(percents))} % to {number(max(percents))} % of the roofline of their card: nothing ran"
    return decided(figure, False if min(percents) > 100 else None)


def _threads() -> Finding:
    """Judge the number of threads for their largest image, in blocks of 16x16."""
    (variant,) = VARIANTS
    problem = Problem(1, 3, 4096, 4096, 1, padding=1)
    (step,) = variant.launches(problem, variant.with_defaults({"block": 16}), places(problem, 0)[0]).compute
    blocks, threads = math.prod(step.grid), math.prod(step.block)
    figure = f"4096x4096 outputs are {blocks:,} blocks of {threads} threads: {blocks * threads:,} threads"
    return decided(figure, blocks * threads == 65536)


def _reads_of_the_image() -> Finding:
    """Judge the values that all threads of im2col read, by its launch, over those that the image has."""
    problem = Problem(1, 3, 1024, 1024, 1, padding=1)
    read, held = im2col.matrix_nbytes(problem) // 4, math.prod(problem.x_shape)
    figure = f"at 1024, stride 1, threads ask for {read:,} values of {held:,}, zeros of the padding included"
    return decided(f"{figure}: each {number(read / held)} times", read <= held)


_TWICE: Final = tuple(pairwise(SIZES))

CLAIMS: Final = (
    Claim(
        "S2.1",
        "3.3.2, 5",
        "A thread-block of 16 is the best in every memory mode",
        "said",
        "16 against 8 and 32, every mode and size",
        faster(edge_pairs(16, 8, 32)),
    ),
    Claim(
        "S2.2",
        "3.3.2",
        "For small images a block of 32 helps, too",
        "said",
        "32 against 8, every mode, at 256 and 512",
        beside(
            faster(edge_pairs(32, 8, sizes=SIZES[:2])), faster(edge_pairs(32, 16, sizes=SIZES[:2])), "32 against 16"
        ),
    ),
    Claim(
        "S2.3",
        "4.3.1, 5",
        "cuDNN is always the fastest",
        "said",
        "cuDNN against tasks 1 and 2, every size and stride",
        faster(task_pairs(CUDNN, DIRECT, GEMM)),
    ),
    Claim(
        "S2.4",
        "3.3.1",
        "Direct convolution beats im2col + tiled GEMM",
        "said",
        "task 1 against task 2, every size and stride",
        faster(task_pairs(DIRECT, GEMM)),
    ),
    Claim(
        "S2.5",
        "3.3.1",
        "im2col + GEMM takes as long, within 5 %, whatever the stride",
        "said",
        "stride 2 and 3 against stride 1, every size",
        same(stride_pairs(GEMM, ((2, 1), (3, 1)))),
    ),
    Claim(
        "S2.6",
        "2.3",
        "Direct convolution takes less time with a larger stride",
        "said",
        "stride 2 against 1, 3 against 2, every size",
        faster(stride_pairs(DIRECT, _FALLING)),
    ),
    Claim(
        "S2.7",
        "4.3.2",
        "cuDNN takes less time with a larger stride",
        "said",
        "stride 2 against 1, 3 against 2, every size",
        faster(stride_pairs(CUDNN, _FALLING)),
    ),
    Claim(
        "S2.8",
        "3.3.2",
        "Shared memory beats global memory",
        "said",
        "shared against basic, every block and size",
        faster(mode_pairs("shared", "basic")),
    ),
    Claim(
        "S2.9",
        "3.3.2",
        "'registers' is a third memory mode",
        "said",
        "registers and shared differ in time, in more than half of all blocks and sizes",
        differ(mode_pairs("registers", "shared")),
    ),
    Claim(
        "S2.10",
        "-",
        "A true register tile is faster than a tile in shared memory, for one output channel",
        "our question",
        "a register tile against shared with 16, every size",
        faster(register_tile_pairs()),
    ),
    Claim(
        "S2.11",
        "-",
        "A true register tile is faster than a tile in shared memory, for 64 output channels",
        "our question",
        "the same with 64 output channels, at 1024, conversion included in both",
        faster(layer_pairs()),
    ),
    Claim(
        "S2.13",
        "3.3.3",
        "A block of 64x64 takes microseconds because size and grid happen to match",
        "said",
        "whether that launch runs at all, and block=64 against 32; theirs: what their card takes at least",
        _launch_that_fails(),
        theirs=_beyond_their_card(),
    ),
    Claim(
        "S2.14",
        "3.3.3",
        "By row, the size of the thread-block makes no difference",
        "said",
        "16 as long as 32 and 64: with one output channel one thread works, whatever the block",
        same(partition_edge_pairs("row", 16, 32, 64)),
    ),
    Claim(
        "S2.15",
        "2.3",
        "The largest image is 65,536 threads",
        "said",
        "threads of the launch: one for each of 4096x4096 outputs",
        Judge((), lambda _: _threads()),
    ),
    Claim(
        "S2.16",
        "3.3.2, 5",
        "With blocks of 16 'registers' is slightly faster than shared",
        "said",
        "registers against shared with 16; one size is enough",
        faster(mode_pairs("registers", "shared", (16,)), "some"),
    ),
    Claim(
        "S2.17",
        "3.3.3",
        "By block is slightly better than by column in most settings",
        "said",
        "block against column, blocks of 16 and 32, every size; more than half",
        faster(way_pairs("block", "column", 16, 32), "most"),
    ),
    Claim(
        "S2.18",
        "3.3.2",
        "The time of shared grows clearly more slowly than that of basic",
        "said",
        "growth from a size to twice that size, every block; 5 % less at least",
        growth(doublings("shared", "basic")),
    ),
    Claim(
        "S2.19",
        "5",
        "With blocks of 16 shared is 3 to 8 times as fast as basic, at all sizes",
        "said",
        "basic against shared with 16, every size",
        between(3, 8, mode_pairs("shared", "basic", (16,))),
    ),
    Claim(
        "S2.20",
        "5",
        "On average cuDNN takes 20 to 50 % less time than tasks 1 and 2",
        "said",
        "mean over all sizes and strides, against either task",
        _average_gain(),
    ),
    Claim(
        "S2.21",
        "3.2.1",
        "im2col reads each value of the image once",
        "said",
        "values that all threads of the conversion ask for, over those of the image",
        Judge((), lambda _: _reads_of_the_image()),
    ),
    Claim(
        "S2.22",
        "2.3",
        "Direct's time quadruples when the side doubles",
        "said",
        "stride 1, every doubling, about 4 times",
        about(
            4, (Pair(f"{size} to {twice}", task_time(DIRECT, size), task_time(DIRECT, twice)) for size, twice in _TWICE)
        ),
    ),
    Claim(
        "S2.23",
        "4.3.2, 5",
        "Stride 3 saves direct 50 to 80 %",
        "said",
        "time with stride 3 against stride 1, 45 to 85 % less, every size; the work is 89 % less",
        saves(0.45, 0.85, stride_pairs(DIRECT, ((3, 1),))),
    ),
    Claim(
        "S2.24",
        "4.3.2",
        "cuDNN gains more from a stride of 3 than direct does",
        "said",
        "time with stride 3 over that with 1, cuDNN's against direct's, 5 % less at least, every size",
        growth(_stride_savings()),
    ),
    Claim(
        "S2.25",
        "3.3.2",
        "A block of 32 saves basic about 74 % against 8",
        "said",
        "basic with 32 against 8, 69 to 79 % less, every size",
        saves(0.69, 0.79, edge_pairs(32, 8, modes=("basic",))),
    ),
    Claim(
        "S2.26",
        "3.3.3",
        "By column is orders of magnitude faster than by row",
        "said",
        "100 times at least, every block and size",
        between(100, math.inf, way_pairs("column", "row", 16, 32, 64)),
    ),
    Claim(
        "S2.27",
        "3.3.3",
        "The block's size matters little by column and by block",
        "said",
        "blocks of 16 and 32 within a factor of 1.2, every size",
        about(1, (*partition_edge_pairs("column", 16, 32), *partition_edge_pairs("block", 16, 32))),
    ),
    Claim(
        "S2.28",
        "3.3.1, 5",
        "im2col + GEMM falls further behind direct as images grow",
        "said",
        "from 1024 to 4096, stride 1, direct's time grows 5 % less at least",
        growth(growing_tasks(1024, 1, (DIRECT, GEMM))),
    ),
    Claim(
        "S2.29",
        "4.3.2",
        "As images grow im2col's time grows most, cuDNN's least",
        "said",
        "from 256 to 4096, stride 2; from 1024 where 256 is too short to count",
        _steepest(),
    ),
    Claim(
        "S2.30",
        "3.3.2",
        "For 2048 and 4096 a block of 32 is too large",
        "said",
        "16 against 32, every mode",
        faster(edge_pairs(16, 32, sizes=SIZES[-2:])),
    ),
)
