"""What S2 claims: which block, memory mode, partition and task is best, and what the stride does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Final

from vgg16gpu.lab.claims_judge import (
    Claim,
    Finding,
    Judge,
    Pair,
    Verdict,
    differ,
    faster,
    missing,
    no_faster,
    reason,
    same,
)
from vgg16gpu.lab.claims_times import Times, key, number, one, published_times
from vgg16gpu.lab.measure import Status
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.published import CARDS
from vgg16gpu.lab.seeds.s2 import LAYER_SIZES, MEMORY, SIZES
from vgg16gpu.lab.variant import places
from vgg16gpu.lab.variants.direct_hwc import VARIANTS

SEED: Final = "S2"
STRIDES: Final = (1, 2, 3)
TOO_LARGE: Final = tuple(key(SEED, "gemm_partition", size, "block", "block=64") for size in SIZES)


def _blocks() -> Iterator[Pair]:
    """16 against the others."""
    for mode, size, block in product(MEMORY, SIZES, (8, 32)):
        best, other = (one(SEED, "gemm_memory", size, mode, f"block={edge}") for edge in (16, block))
        yield Pair(f"{mode} {size}, 16 and {block}", best, other)


def _modes(mode: str, other: str) -> Iterator[Pair]:
    for size, block in product(SIZES, (8, 16, 32)):
        first, second = (one(SEED, "gemm_memory", size, name, f"block={block}") for name in (mode, other))
        yield Pair(f"{size} block={block}", first, second)


def _larger_shared() -> Iterator[Pair]:
    for size in SIZES[:2]:
        first, second = (one(SEED, "gemm_memory", size, "shared", f"block={block}") for block in (32, 16))
        yield Pair(str(size), first, second)


def _register_tile() -> Iterator[Pair]:
    for size in SIZES:
        tile = one(SEED, "gemm_memory", size, "register_tile")
        yield Pair(str(size), tile, one(SEED, "gemm_memory", size, "shared", "block=16"))


def _layer() -> Iterator[Pair]:
    for size in LAYER_SIZES:
        tile, shared = (one(SEED, "layer", size, name, "outputs=64") for name in ("register_tile", "shared"))
        yield Pair(str(size), tile, shared)


def _block_and_basic() -> Iterator[Pair]:
    for size, block in product(SIZES, (16, 32)):
        first = one(SEED, "gemm_partition", size, "block", f"block={block}")
        yield Pair(f"{size} block={block}", first, one(SEED, "gemm_memory", size, "basic", f"block={block}"))


def _rows() -> Iterator[Pair]:
    for size, block in product(SIZES, (32, 64)):
        first, second = (one(SEED, "gemm_partition", size, "row", f"block={edge}") for edge in (16, block))
        yield Pair(f"{size}, 16 and {block}", first, second)


def _tasks(task: str, *others: str) -> Iterator[Pair]:
    for size, stride, other in product(SIZES, STRIDES, others):
        first, second = (one(SEED, "stride", size, name, f"stride={stride}") for name in (task, other))
        yield Pair(f"{size} stride={stride}, {task} and {other}", first, second)


def _strides(task: str, pairs: tuple[tuple[int, int], ...]) -> Iterator[Pair]:
    for size, (larger, smaller) in product(SIZES, pairs):
        first, second = (one(SEED, "stride", size, task, f"stride={stride}") for stride in (larger, smaller))
        yield Pair(f"{size}, stride {larger} and {smaller}", first, second)


def _launch_that_fails() -> Judge:
    """Whether blocks of 64x64 ran at all, and then whether they are the fastest."""
    pairs = [Pair(name[2], one(*name), one(SEED, "gemm_partition", name[2], "block", "block=32")) for name in TOO_LARGE]
    ran = faster(pairs)

    def find(times: Times) -> Finding:
        invalid = [times[name] for name in TOO_LARGE if times[name].status == Status.INVALID]
        if invalid:
            return Finding(
                f"invalid launch, {len(invalid)} of {len(TOO_LARGE)} sizes: {reason(invalid[0])}", Verdict.DOES_NOT
            )
        return ran.find(times)

    return Judge(ran.keys, find)


def _beyond_their_card() -> Finding:
    """Their times are less than their card takes to move the arrays once."""
    percents = []
    for name in TOO_LARGE:
        milliseconds, size = published_times()[name].value, int(name[2])
        if milliseconds:
            percents.append(CARDS[SEED].percent(Problem(1, 3, size, size, 1, padding=1), milliseconds / 1e3))
    if not percents:
        return missing(["not published"])
    figure = f"{number(min(percents))} % to {number(max(percents))} % of the roofline of their card: nothing ran"
    return Finding(figure, Verdict.DOES_NOT if min(percents) > 100 else Verdict.CANNOT_TELL)


def _threads() -> Finding:
    """What is launched for their largest image, in blocks of 16x16."""
    (variant,) = VARIANTS
    problem = Problem(1, 3, 4096, 4096, 1, padding=1)
    (step,) = variant.launches(problem, variant.with_defaults({"block": 16}), places(problem, 0)[0]).compute
    blocks, threads = math.prod(step.grid), math.prod(step.block)
    figure = f"4096x4096 outputs are {blocks:,} blocks of {threads} threads: {blocks * threads:,} threads"
    return Finding(figure, Verdict.HOLDS if blocks * threads == 65536 else Verdict.DOES_NOT)


_DIRECT, _GEMM, _CUDNN = "direct", "im2col_gemm", "cudnn"
_FALLING: Final = ((2, 1), (3, 2))

CLAIMS: Final = (
    Claim(
        SEED,
        "A thread-block of 16 is the best in every memory mode",
        "said",
        "16 against 8 and 32, every mode and size",
        faster(_blocks()),
    ),
    Claim(
        SEED,
        "A thread-block of 32 helps shared memory at small sizes",
        "said",
        "shared with 32 against 16, at 256 and 512",
        faster(_larger_shared()),
    ),
    Claim(
        SEED,
        "cuDNN is always the fastest",
        "said",
        "cuDNN against tasks 1 and 2, every size and stride",
        faster(_tasks(_CUDNN, _DIRECT, _GEMM)),
    ),
    Claim(
        SEED,
        "Direct convolution beats im2col + tiled GEMM",
        "table",
        "task 1 against task 2, every size and stride",
        faster(_tasks(_DIRECT, _GEMM)),
    ),
    Claim(
        SEED,
        "im2col + GEMM takes as long with a larger stride",
        "table",
        "stride 2 and 3 are no faster than stride 1, every size",
        no_faster(_strides(_GEMM, ((2, 1), (3, 1)))),
    ),
    Claim(
        SEED,
        "Direct convolution takes less time with a larger stride",
        "table",
        "stride 2 against 1, 3 against 2, every size",
        faster(_strides(_DIRECT, _FALLING)),
    ),
    Claim(
        SEED,
        "cuDNN takes less time with a larger stride",
        "table",
        "stride 2 against 1, 3 against 2, every size",
        faster(_strides(_CUDNN, _FALLING)),
    ),
    Claim(
        SEED,
        "Shared memory beats global memory",
        "table",
        "shared against basic, every block and size",
        faster(_modes("shared", "basic")),
    ),
    Claim(
        SEED,
        "'registers' is a third memory mode",
        "practice",
        "registers and shared differ in time, every block and size",
        differ(_modes("registers", "shared")),
    ),
    Claim(
        SEED,
        "Registers make the product faster than shared memory alone",
        "said",
        "a true register tile against shared with 16, one output channel as theirs",
        faster(_register_tile()),
    ),
    Claim(
        SEED,
        "Registers make the product faster for a layer of 64 output channels",
        "said",
        "the same with 64 output channels, at 1024, conversion included in both",
        faster(_layer()),
    ),
    Claim(
        SEED,
        "'block' is a partition that 'basic' is not",
        "practice",
        "block and basic differ in time, blocks of 16 and 32, every size",
        differ(_block_and_basic()),
    ),
    Claim(
        SEED,
        "Blocks of 64x64 are the fastest (0.003 ms)",
        "table",
        "whether the launch is valid, and block=64 against 32",
        _launch_that_fails(),
        theirs=_beyond_their_card(),
    ),
    Claim(
        SEED,
        "By row, the size of the thread-block makes no difference",
        "table",
        "16 as long as 32 and 64: with one output channel one thread works, whatever the block",
        same(_rows()),
    ),
    Claim(
        SEED,
        "The largest image is 65,536 threads",
        "said",
        "threads of the launch: one for each of 4096x4096 outputs",
        Judge((), lambda _: _threads()),
    ),
)
