"""Which times of S2 a claim sets beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Final

from vgg16gpu_lab.claims.judge import Growing, Pair
from vgg16gpu_lab.claims.times import Quantity, one
from vgg16gpu_lab.experiments.s2 import LAYER_SIZES, MEMORY, SIZES

SEED: Final = "S2"
STRIDES: Final = (1, 2, 3)
BLOCKS: Final = (8, 16, 32)

DIRECT, GEMM, CUDNN = "direct", "im2col_gemm", "cudnn"


def memory_time(mode: str, size: int, block: int) -> Quantity:
    """Return the time of a memory mode of the tiled product."""
    return one(SEED, "gemm_memory", size, mode, f"block={block}")


def partition_time(way: str, size: int, block: int) -> Quantity:
    """Return the time of a partition of the tiled product."""
    return one(SEED, "gemm_partition", size, way, f"block={block}")


def task_time(task: str, size: int, stride: int = 1) -> Quantity:
    """Return the time of one of the ways to compute the convolution."""
    return one(SEED, "stride", size, task, f"stride={stride}")


def mode_pairs(mode: str, other: str, blocks: tuple[int, ...] = BLOCKS) -> Iterator[Pair]:
    """Yield two memory modes with the same block."""
    for size, block in product(SIZES, blocks):
        yield Pair(f"{size} block={block}", memory_time(mode, size, block), memory_time(other, size, block))


def edge_pairs(edge: int, *others: int, sizes: tuple[int, ...] = SIZES, modes: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Yield two blocks in the same memory mode."""
    for mode, size, other in product(modes or tuple(MEMORY), sizes, others):
        yield Pair(f"{mode} {size}, {edge} and {other}", memory_time(mode, size, edge), memory_time(mode, size, other))


def way_pairs(way: str, other: str, *blocks: int) -> Iterator[Pair]:
    """Yield two partitions with the same block."""
    for size, block in product(SIZES, blocks):
        yield Pair(f"{size} block={block}", partition_time(way, size, block), partition_time(other, size, block))


def partition_edge_pairs(way: str, edge: int, *others: int) -> Iterator[Pair]:
    """Yield two blocks in the same partition."""
    for size, other in product(SIZES, others):
        yield Pair(
            f"{way} {size}, {edge} and {other}", partition_time(way, size, edge), partition_time(way, size, other)
        )


def register_tile_pairs() -> Iterator[Pair]:
    """Yield a tile in registers and one in shared memory, of one output channel."""
    for size in SIZES:
        yield Pair(str(size), one(SEED, "gemm_memory", size, "register_tile"), memory_time("shared", size, 16))


def layer_pairs() -> Iterator[Pair]:
    """Yield the same for 64 output channels."""
    for size in LAYER_SIZES:
        tile, shared = (one(SEED, "layer", size, name, "outputs=64") for name in ("register_tile", "shared"))
        yield Pair(str(size), tile, shared)


def task_pairs(task: str, *others: str) -> Iterator[Pair]:
    """Yield two ways to compute the convolution, with the same stride."""
    for size, stride, other in product(SIZES, STRIDES, others):
        label = f"{size} stride={stride}, {task} and {other}"
        yield Pair(label, task_time(task, size, stride), task_time(other, size, stride))


def stride_pairs(task: str, pairs: tuple[tuple[int, int], ...]) -> Iterator[Pair]:
    """Yield two strides of the same way."""
    for size, (larger, smaller) in product(SIZES, pairs):
        yield Pair(
            f"{size}, stride {larger} and {smaller}", task_time(task, size, larger), task_time(task, size, smaller)
        )


def doublings(mode: str, other: str) -> Iterator[Growing]:
    """Yield doublings of the image's side, with every block."""
    for (size, twice), block in product(pairwise(SIZES), BLOCKS):
        sides = [(memory_time(name, size, block), memory_time(name, twice, block)) for name in (mode, other)]
        yield Growing(f"{size} to {twice}, block={block}", sides[0], sides[1])


def growing_tasks(small: int, stride: int, *pairs: tuple[str, str]) -> Iterator[Growing]:
    """Yield pairs of tasks of which the first grows less from `small` to 4096 pixels than the second."""
    for tasks in pairs:
        sides = [(task_time(task, small, stride), task_time(task, SIZES[-1], stride)) for task in tasks]
        yield Growing(f"{' less than '.join(tasks)}, from {small}", sides[0], sides[1])
