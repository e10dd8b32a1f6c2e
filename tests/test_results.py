"""What comes back from a run: read for some of the images, copied, judged, and refused where a kernel gave up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vgg16gpu.errors import KernelError
from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Conv, Gemm, Graph, GraphInput, Pads, Window
from vgg16gpu.plan import Wish, make_plan
from vgg16gpu.program import Program
from vgg16gpu.results import ResultBlock

CPU = DeviceFacts("cpu", "cpu", 1, (0, 0), 48 * 1024, 1 << 30, 1 << 30)
BATCH = 3


@pytest.fixture(scope="module")
def program() -> Program:
    """Two values are watched: conv's input and output."""
    window = Window((3, 3), pads=Pads(1, 1, 1, 1))
    conv = Conv("x", "features", ("features",), np.zeros((8, 3, 3, 3), np.float32), None, window)
    gemm = Gemm("features", "scores", ("scores",), np.zeros((4, 8 * 36), np.float32), None, flattens=True)
    graph = Graph(GraphInput("x", (None, 3, 6, 6)), (conv, gemm), ("scores",))
    made = make_plan(graph, CPU, [(BATCH, 3, 6, 6)], Wish(precision="fp16", kernels="mma")).programs[0]
    assert made.control.watched == ("x", "features")
    return made


def block(program: Program) -> Any:
    """A block of zeros, and its words: the error, a status for each image, magnitudes of two values."""
    buffer = np.zeros(program.output_end - program.control.error.offset, np.uint8)
    return buffer, buffer[: 4 * program.control.returned_words].view(np.int32)


def test_rows_and_flags_of_the_first_images(program: Program) -> None:
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
    assert (last.nonfinite.tolist(), last.out_of_range.tolist()) == ([True], [False])


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(
    ("magnitude", "lowest", "lost"),
    [(65504.0, 0.0, False), (np.inf, 0.0, True), (np.nan, 0.0, True), (7.9, 8.0, True), (8.0, 8.0, False)],
)
def test_a_magnitude_out_of_range(program: Program, value: int, magnitude: float, lowest: float, lost: bool) -> None:
    buffer, words = block(program)
    maxima = words[1 + BATCH :].view(np.float32).reshape(2, BATCH)
    maxima[:] = 100
    maxima[value, 1] = magnitude
    strict = replace(program, control=replace(program.control, lowest=lowest))
    assert ResultBlock(strict, buffer).read(BATCH).out_of_range.tolist() == [False, lost, False]


@pytest.mark.parametrize(
    ("word", "who"),
    [(1, "operator 1 'features': "), (2, "operator 2 'scores': "), (3, "operator 3: "), (-5, "operator -5: ")],
)
def test_a_kernel_that_gave_up_is_named(program: Program, word: int, who: str) -> None:
    buffer, words = block(program)
    words[0] = word
    with pytest.raises(KernelError, match=f"^{who}a kernel waited in vain .* results are wrong"):
        ResultBlock(program, buffer).read(1)
