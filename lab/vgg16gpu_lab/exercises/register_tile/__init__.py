"""A register tile: each value from shared memory is used several times."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most, no_race, normal
from vgg16gpu_lab.exercises.log import Log, Noted

BLOCK = 16
M, N, K = 128, 128, 16
MOST = 0.6  # reads of shared memory a product: 2 / TILE, with a TILE of 4 or more


def _case(tile: int, rows: int, columns: int, length: int) -> Case:
    a, b = normal(0, rows, length), normal(1, length, columns)
    edge = BLOCK * tile
    grid = Dim3(-(-columns // edge), -(-rows // edge))
    launch = Launch("register_tile", grid, Dim3(BLOCK, BLOCK), ("y", "a", "b", rows, columns, length))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    return Case(f"{rows}x{length} by {length}x{columns}", {"a": a, "b": b}, (launch,), expected)


def _judge(bench: Bench) -> Iterator[Finding]:
    tile = bench.number("TILE", 1, 8)
    found, outcomes = answer(bench, (_case(tile, *sizes) for sizes in ((M, N, K), (70, 45, 37))))
    yield found
    log, products = outcomes[0].log, M * N * K
    look = (
        "Raise TILE to 4, let a thread have sum[TILE][TILE], and copy as[...][k] and bs[k][...] into arrays of "
        "registers before the products."
    )
    yield at_most("reads of shared memory a product", log.shared(Noted.READ) / products, MOST, look)
    look = "Keep as and bs: the products should take their values from __shared__ Counted<float> arrays."
    yield at_least("values a block writes to shared memory", log.shared(Noted.WRITE) / (M * K + K * N), 1, look)
    look = "Read a and b from global memory once a block, into shared memory."
    yield at_most("reads of a and b a product", _global_reads(log) / products, 2 / BLOCK, look)
    yield no_race(outcomes[0])


def _global_reads(log: Log) -> int:
    return log.count(Noted.READ, "a") + log.count(Noted.READ, "b")


EXERCISE = Exercise(
    name="register-tile",
    title="A register tile",
    task="Two reads of shared memory a product. Let a thread compute TILE x TILE outputs: 2/TILE reads a product.",
    hints=(
        "With #define TILE 4 a block computes 64 x 64 outputs: each thread has 16, sum[TILE][TILE], 16 rows and "
        "columns apart, and each thread must now fill TILE values of as and TILE of bs.",
        "In the loop over k: float ra[TILE], rb[TILE]; ra[i] = as[ty + i * BLOCK][k]; rb[j] = bs[k][tx + j * BLOCK].",
        "Then sum[i][j] = fmaf(ra[i], rb[j], sum[i][j]) for all i and j: 16 products for 8 reads. Put UNROLL in front "
        "of the loops over i and j, so that the arrays are registers.",
    ),
    explanation=(
        "A multiprocessor reads 32 floats of shared memory a cycle and multiplies 128. With two reads a product "
        "arithmetic waits seven cycles of eight. 4 x 4 outputs a thread take 8 reads for 16 products, 8 x 8 outputs 16 "
        "for 64. The price is registers (16 or 64 for the sums), so fewer warps fit on a multiprocessor: see `lab list "
        "--kernels`. Outputs of a thread are 16 apart, not side by side, so that the threads of a warp still read "
        "neighbouring values."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
