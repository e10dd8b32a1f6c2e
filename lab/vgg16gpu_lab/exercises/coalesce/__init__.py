"""Coalesce a kernel: neighbours in a warp should be neighbours in memory."""

from collections.abc import Iterator
from pathlib import Path

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most
from vgg16gpu_lab.exercises.log import Noted
from vgg16gpu_lab.problem import Problem

BLOCK = Dim3(32, 8)
MOST = 5.0  # sectors: 32 floats side by side lie in 4, or in 5 where they begin in the middle of one
LOOK = "Which of i and j should change from a thread to its neighbour in the warp, that is with threadIdx.x?"


def _case(rows: int, columns: int) -> Case:
    problem = Problem(1, 1, rows, columns, 1, padding=1)
    x, weight = problem.random()
    side = max(rows, columns)
    grid = Dim3(-(-side // BLOCK.x), -(-side // BLOCK.y))
    launch = Launch("coalesce", grid, BLOCK, ("y", "x", "filter", rows, columns))
    return Case(f"{rows}x{columns}", {"x": x, "filter": weight}, (launch,), problem.expected(x, weight))


def _judge(bench: Bench) -> Iterator[Finding]:
    found, outcomes = answer(bench, map(_case, (96, 37, 1), (96, 70, 5)))
    yield found
    log = outcomes[0].log
    look = "Read the image as x[...] and write it as y[...], element by element: other ways are not counted."
    yield at_least("values of x that are read", log.distinct(Noted.READ, "x"), 96 * 96, look)
    yield at_least("values of y that are written", log.count(Noted.WRITE, "y"), 96 * 96, look)
    yield at_most("sectors a read of x", log.sectors(Noted.READ, "x"), MOST, LOOK)
    yield at_most("sectors a write of y", log.sectors(Noted.WRITE, "y"), MOST, LOOK)


EXERCISE = Exercise(
    name="coalesce",
    title="Coalesce a kernel",
    task="Threads side by side read addresses a row apart. Let them read addresses side by side.",
    hints=(
        "A warp is 32 threads with the same threadIdx.y (the block is 32 wide) and threadIdx.x from 0 to 31.",
        "x[h * columns + w]: a step of w is 4 bytes, a step of h is a whole row. Which of them moves with threadIdx.x?",
        "Exchange the two: the column j comes from blockIdx.x and threadIdx.x, the row i from the y's.",
    ),
    explanation=(
        "Memory hands out sectors of 32 bytes. 32 threads that read 32 neighbouring floats need 4 of them (5 where the "
        "first float is in the middle of one), and every byte is used. 32 threads that read a column need 32 sectors "
        "and use an eighth of each. Nothing else has changed: the same threads, the same sums, the same bits."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
