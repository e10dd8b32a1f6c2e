"""What comes back from a run: read for some of the images, copied, judged, and refused where a kernel gave up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Conv, Gemm
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.outputs import LARGEST_FLOAT16, ResultBlock

CPU = DeviceFacts("cpu", "cpu", 1, (0, 0), 48 * 1024, 1 << 30, 1 << 30)
BATCH = 3


@pytest.fixture(scope="module")
def program() -> LaunchPlan:
    """Two values are watched: conv's input and output."""
    window = Window((3, 3), pads=Pads(1, 1, 1, 1))
    conv = Conv("x", "features", ("features",), np.zeros((8, 3, 3, 3), np.float32), None, window)
    gemm = Gemm("features", "scores", ("scores",), np.zeros((4, 8 * 36), np.float32), None, flattens=True)
    graph = Graph(GraphInput("x", (None, 3, 6, 6)), (conv, gemm), ("scores",))
    made = make_plan(graph, CPU, [(BATCH, 3, 6, 6)], PlanOptions(precision="fp16", kernels="mma")).programs[0]
    assert made.control.watched == ("x", "features")
    return made


def block(program: LaunchPlan) -> Any:
    """A block of zeros, and its words: the error, a status for each image, magnitudes of two values."""
    buffer = np.zeros(program.output_end - program.control.error.offset, np.uint8)
    return buffer, buffer[: 4 * program.control.returned_words].view(np.int32)


def test_rows_and_flags_of_the_first_images(program: LaunchPlan) -> None:
    buffer, words = block(program)
    scores = buffer[program.outputs[0].pointer.offset - program.control.error.offset :][: 4 * 4 * BATCH]
    scores.view(np.float32)[:] = np.arange(4 * BATCH)
    words[1 + 1] = 1
    results = ResultBlock(program, buffer).read(2)
    assert np.array_equal(results.outputs[0], np.arange(8).reshape(2, 4))
    assert results.nonfinite.tolist() == [False, True]
    assert results.out_of_range.tolist() == [False, False]
    buffer[:] = 0
    assert results.outputs[0].any()
    assert results.nonfinite.any()
    last = results.rows(1, 2)
    assert np.array_equal(last.outputs[0], [[4, 5, 6, 7]])
    assert last.outputs[0].base is None  # the other rows can go
    assert (last.nonfinite.tolist(), last.out_of_range.tolist()) == ([True], [False])


# ---- Words at the edges, however they come together

LOWEST = [0.0, 2.0**-9, 8.0]


def bits(*numbers: float) -> list[int]:
    found: list[int] = np.array(numbers, np.float32).view(np.uint32).tolist()
    return found


def neighbours(number: float) -> tuple[float, float]:
    """The floats below and above."""
    return float(np.nextafter(np.float32(number), np.float32(-1))), float(np.nextafter(np.float32(number), np.inf))


def clean_magnitudes(lowest: float) -> list[int]:
    return bits(lowest, neighbours(lowest)[1], 100, neighbours(LARGEST_FLOAT16)[0], LARGEST_FLOAT16)


def odd_magnitudes(lowest: float) -> list[int]:
    """Some of them are in range for some of `LOWEST`."""
    numbers = bits(*neighbours(lowest), *neighbours(LARGEST_FLOAT16), 0.0, -0.0, 1e-45, -1e-45, 1e-39, np.inf, -np.inf)
    return [*numbers, *bits(-100, 2.0**-10), 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]


def clean_words(chance: random.Random, lowest: float) -> list[int]:
    return [0] * (1 + BATCH) + chance.choices(clean_magnitudes(lowest), k=2 * BATCH)


def with_lowest(program: LaunchPlan, lowest: float) -> LaunchPlan:
    return replace(program, control=replace(program.control, lowest=lowest))


@pytest.mark.parametrize("lowest", LOWEST)
def test_flags_are_those_of_each_word_by_itself(program: LaunchPlan, lowest: float) -> None:
    buffer, words = block(program)
    reader, chance = ResultBlock(with_lowest(program, lowest), buffer), random.Random(lowest)
    for _ in range(500):
        chosen = clean_words(chance, lowest)
        for place in chance.choices(range(1, len(chosen)), k=chance.randrange(3)):
            chosen[place] = chance.choice([1, 2**31, 2**32 - 1] if place <= BATCH else odd_magnitudes(lowest))
        words.view(np.uint32)[:] = chosen
        count = chance.randint(1, BATCH)
        _, nonfinite, out_of_range = reader.read(count)
        magnitudes = np.array(chosen[1 + BATCH :], np.uint32).view(np.float32).reshape(2, BATCH).tolist()
        assert nonfinite.tolist() == [status != 0 for status in chosen[1 : 1 + count]], chosen
        assert out_of_range.tolist() == [
            not all(lowest <= of_value[image] <= LARGEST_FLOAT16 for of_value in magnitudes) for image in range(count)
        ], chosen


@pytest.mark.parametrize(
    ("word", "who"),
    [(1, "operator 1 'features': "), (2, "operator 2 'scores': "), (3, "operator 3: "), (-5, "operator -5: ")],
)
def test_a_kernel_that_gave_up_is_named(program: LaunchPlan, word: int, who: str) -> None:
    buffer, words = block(program)
    words[0] = word
    with pytest.raises(KernelError, match=f"^{who}a kernel waited in vain .* results are wrong"):
        ResultBlock(program, buffer).read(1)
