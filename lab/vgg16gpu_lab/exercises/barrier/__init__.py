"""Find the missing barrier: a tile in shared memory is filled again while others still read it."""

from collections.abc import Iterator
from pathlib import Path

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most, no_race
from vgg16gpu_lab.exercises.log import Noted
from vgg16gpu_lab.problem import Problem

TILE = 16
CHANNELS = 3
BARRIERS = 2  # a channel


def _case(channels: int, rows: int, columns: int) -> Case:
    problem = Problem(1, channels, rows, columns, 1, padding=1)
    x, weight = problem.random()
    launch = Launch(
        "barrier",
        Dim3(-(-columns // TILE), -(-rows // TILE)),
        Dim3(TILE, TILE),
        ("y", "x", "filter", channels, rows, columns),
    )
    name = f"{channels} channels of {rows}x{columns}"
    return Case(name, {"x": x, "filter": weight}, (launch,), problem.expected(x, weight))


def _judge(bench: Bench) -> Iterator[Finding]:
    found, outcomes = answer(bench, map(_case, (CHANNELS, 4), (32, 19), (32, 23)))
    yield found
    log = outcomes[0].log
    yield no_race(outcomes[0])
    look = "Keep the tile: __shared__ Counted<float> tile[SIDE][SIDE], read nine times by each thread."
    yield at_least("reads of shared memory an output", log.shared(Noted.READ) / 32**2, 9 * CHANNELS, look)
    passed = log.most_by_a_thread(Noted.BARRIER) / CHANNELS
    yield at_most(
        "barriers a channel", passed, BARRIERS, "One __syncthreads() is missing, no more; where is it needed?"
    )


EXERCISE = Exercise(
    name="barrier",
    title="Find the missing barrier",
    task="A tile in shared memory is used by all threads of a block. One __syncthreads() is missing.",
    hints=(
        "A barrier must stand between a write and a read of the same place by another thread, in either order.",
        "The barrier that is there lies between filling the tile and reading it. What comes after reading it?",
        "In the next turn of the loop over c a fast thread writes the tile while a slow one still reads the last one.",
    ),
    explanation=(
        "There are two things to wait for. Before anybody reads the tile it must be full; that barrier was there. "
        "Before anybody fills it again all must have read it; that one belongs at the end of the loop's body. Without "
        "it the answer depends on which warp is faster, so it may be right for years. That is why the check does not "
        "only look at the answer: it notes who touches what between which barriers."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
