"""Make it a tile: what neighbours share is loaded from global memory once."""

from collections.abc import Iterator
from pathlib import Path

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most, no_race
from vgg16gpu_lab.exercises.log import Noted
from vgg16gpu_lab.problem import Problem

CHANNELS, SIZE = 2, 64
MOST = 1.6  # loads an output and channel: (8 + 2)^2 / 8^2, the smallest tile that may be asked for


def _case(tile: int, channels: int, rows: int, columns: int) -> Case:
    problem = Problem(1, channels, rows, columns, 1, padding=1)
    x, weight = problem.random()
    grid = Dim3(-(-columns // tile), -(-rows // tile))
    launch = Launch("tile", grid, Dim3(tile, tile), ("y", "x", "filter", channels, rows, columns))
    name = f"{channels} channels of {rows}x{columns}"
    return Case(name, {"x": x, "filter": weight}, (launch,), problem.expected(x, weight))


def _judge(bench: Bench) -> Iterator[Finding]:
    tile = bench.number("TILE", 8, 32)
    cases = (_case(tile, *sizes) for sizes in ((CHANNELS, SIZE, SIZE), (3, 19, 45)))
    found, outcomes = answer(bench, cases)
    yield found
    log, outputs = outcomes[0].log, CHANNELS * SIZE**2
    look = "Read the image as x[...], element by element: other ways are not counted."
    yield at_least("values of x that are read", log.distinct(Noted.READ, "x"), outputs, look)
    look = "A value of x belongs to nine outputs: copy it to shared memory once, read it nine times from there."
    yield at_most("reads of x an output and channel", log.count(Noted.READ, "x") / outputs, MOST, look)
    look = "Declare the tile as __shared__ Counted<float> tile[...][...]: then its races can be seen, too."
    yield at_least("reads of shared memory an output and channel", log.shared(Noted.READ) / outputs, 1, look)
    yield no_race(outcomes[0])


EXERCISE = Exercise(
    name="tile",
    title="Make it a tile",
    task="Each value of x is read nine times from global memory. Read it once a block, into shared memory.",
    hints=(
        "TILE x TILE outputs of a 3x3 filter need (TILE+2) x (TILE+2) values of a channel: the tile and its halo.",
        "There are more values than threads: for (row = threadIdx.y; row < SIDE; row += TILE), columns alike.",
        "Two barriers a channel: after the tile is filled, and before it is filled again. All threads must come there, "
        "so `if (i >= rows || j >= columns) return;` must go to the end, as a condition of the store.",
        "Values beside the image are stored into the tile as zero: then the loop over p and q needs no condition.",
    ),
    explanation=(
        "With a tile of 16 a block reads 18 x 18 values for 256 outputs, 1.27 an output instead of 9. What is saved is "
        "traffic to L1 and L2, not always time: an L1 cache does much of the same by itself. So measure: `vgg16gpu lab "
        "run direct-chw tiled-shared`. A tile pays where values are used more often (larger filters, more outputs)."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
