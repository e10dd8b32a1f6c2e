"""Split the sum: blocks share a long sum where there are few outputs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most, normal
from vgg16gpu_lab.exercises.log import Noted

THREADS = 32
LENGTH, OUTPUTS = 2048, 32
PARTS = 16  # at least


def _case(parts: int, length: int, outputs: int) -> Case:
    x, w = normal(0, length), normal(1, length, outputs) / np.float32(np.sqrt(length))
    columns = -(-outputs // THREADS)
    block = Dim3(THREADS)
    launches = (
        Launch("split_sum", Dim3(columns, parts), block, ("partial", "w", "x", length, outputs)),
        Launch("add_parts", Dim3(columns), block, ("y", "partial", outputs)),
    )
    expected = x.astype(np.float64) @ w.astype(np.float64)
    name = f"{outputs} sums of {length}"
    return Case(name, {"x": x, "w": w}, launches, expected, {"partial": parts * outputs})


def _judge(bench: Bench) -> Iterator[Finding]:
    parts = bench.number("PARTS", 1, 256)
    found, outcomes = answer(bench, (_case(parts, *sizes) for sizes in ((LENGTH, OUTPUTS), (1003, 45), (7, 3))))
    yield found
    log = outcomes[0].log
    yield at_least("PARTS, the blocks that share a sum", parts, PARTS, "Raise #define PARTS.")
    look = "Block blockIdx.y should walk its own part of 0 to length, not all of it."
    yield at_most("products of the busiest thread", log.most_by_a_thread(Noted.READ, "w"), LENGTH // PARTS, look)
    look = "The parts must not overlap: each value of w belongs to one of them."
    yield at_most("reads of w, of each value", log.count(Noted.READ, "w") / (LENGTH * OUTPUTS), 1, look)
    look = "Read the weights as w[...], element by element: other ways are not counted."
    yield at_least("values of w that are read", log.distinct(Noted.READ, "w"), LENGTH * OUTPUTS, look)


EXERCISE = Exercise(
    name="split",
    title="Split the sum",
    task="32 outputs with sums of 2048 products keep one multiprocessor busy. Let many blocks share each sum.",
    hints=(
        "The launch has PARTS blocks in y already, and `partial` has room for as many parts: blockIdx.y is the part.",
        "A part is (length + PARTS - 1) / PARTS products long, rounded up; the last one ends at length.",
        "first = part * share, end = min(first + share, length). A part may be empty; it stores zero then.",
    ),
    explanation=(
        "An H200 has 132 multiprocessors; one block uses one of them. With 32 parts 32 of them work, and each sum is "
        "64 products long instead of 2048. The parts are stored and added by a second kernel, always in one order: "
        "the same bits in every run, which atomicAdd does not give. That is split-K, an idea of the ladder, and what "
        "the fully connected layers of VGG16 need at batch 1."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
