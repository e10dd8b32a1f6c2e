"""Clips in plans: limits of what takes the input in and of what computes, where nothing else wants what lies before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Clip, Conv, Gemm, Op
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions, without_input_clip
from vgg16gpu.compiler.quantization.scheme import Scale, quantise
from vgg16gpu.devices.facts import H200
from vgg16gpu.program.launch import CompiledModel

SHAPE = (None, 3, 16, 16)


def conv(x: str, y: str, channels: int, **options: Any) -> Conv:
    weight = np.ones((64, channels, 3, 3), np.float32)
    return Conv(x, y, (y,), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)), **options)


def graph_of(*ops: Op) -> Graph:
    return Graph(GraphInput("x", SHAPE), ops, (ops[-1].y,))


CLIP = Clip("x", "c", ("c",), low=-2.0, high=3.0)
NET = graph_of(
    CLIP,
    conv("c", "a", 3),
    Clip("a", "ac", ("ac",), low=0.0, high=6.0, relu=True),
    conv("ac", "b", 64, pool=True),
    Clip("b", "bc", ("bc",), low=-1.0, high=6.0),
    Gemm("bc", "g", ("g",), np.ones((10, 64 * 64), np.float32), None, flattens=True),
    Clip("g", "y", ("y",), low=-8.0, high=9.0),
)


def planned(graph: Graph, precision: str, **options: Any) -> CompiledModel:
    samples = lambda: np.ones((1, 3, 16, 16), np.float32)  # noqa: E731 - one use
    wish = PlanOptions(precision, samples=samples, **options)
    return make_plan(graph, H200, [(1, 3, 16, 16)], wish)


def labels(plan: CompiledModel) -> list[str]:
    program = plan.programs[0]
    return [step.label for step in (*program.input.entries["float32"].steps, *program.steps)]


def test_the_clip_of_the_input_goes() -> None:
    graph, limits = without_input_clip(NET)
    assert limits == (-2.0, 3.0)
    assert [op.y for op in graph.ops] == ["a", "ac", "b", "bc", "g", "y"]
    assert graph.ops[0].x == "x"
    positive = replace(NET, ops=(replace(CLIP, relu=True), *NET.ops[1:]))
    assert without_input_clip(positive)[1] == (0.0, 3.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: replace(graph, ops=(*graph.ops, conv("x", "z", 3)), outputs=("y", "z")),
        lambda graph: replace(graph, outputs=("y", "c")),
        lambda graph: replace(graph, outputs=("y", "x")),
        lambda graph: replace(graph, ops=(replace(CLIP, low=1.0), *graph.ops[1:])),
        lambda graph: replace(graph, ops=(replace(CLIP, others=("l", "h")), *graph.ops[1:])),
    ],
    ids=["two readers", "an output", "the input is one", "above zero", "computed"],
)
@pytest.mark.every_case
def test_other_clips_stay(change: Callable[[Graph], Graph]) -> None:
    graph = change(NET)
    assert without_input_clip(graph) == (graph, None)


def test_int8_stays_as_it_is() -> None:
    scales = {"c": Scale(0.1, signed=True), "ac": Scale(0.1, signed=False), "bc": Scale(0.1, signed=True)}
    plan = planned(NET, "int8", quantised=quantise(NET, scales))
    assert sum(label.startswith("clip") for label in labels(plan)) == 4
    assert not any(name == "CLIPS" for kernel in plan.kernels for name, _ in kernel.defines)
