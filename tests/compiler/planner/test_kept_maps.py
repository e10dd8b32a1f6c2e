"""The planning of a convolution whose map is wanted beside what the pool makes of it: when one kernel stores both."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.compiler.planner.test_conv_first_two_plan import HOPPER, conv, defines, graph_of
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import KEEPING, PlanOptions
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import DType

HEIGHT, WIDTH = 30, 37
CONVOLUTIONS = conv("x", "a", 3, 64), conv("a", "b", 64, 64), conv("p", "c", 64, 128), conv("c", "d", 128, 128)
POOLS = Pool("b", "p", ("p",), "max", MAX_POOL_2X2), Pool("d", "q", ("q",), "max", MAX_POOL_2X2)
TAPPED = graph_of(*CONVOLUTIONS[:2], POOLS[0], *CONVOLUTIONS[2:], POOLS[1], outputs=("b", "d", "q"))
SHAPES = {"b": (64, HEIGHT, WIDTH), "p": (64, 15, 18), "c": (128, 15, 18), "d": (128, 15, 18), "q": (128, 7, 9)}


def plan_of(graph: Graph, precision: str, *batches: int, **options: Any) -> CompiledModel:
    shapes = [(batch, 3, HEIGHT, WIDTH) for batch in batches or (1,)]
    return make_plan(graph, HOPPER, shapes, PlanOptions(precision, **options))


def steps_of(program: LaunchPlan) -> list[KernelLaunch]:
    """Without those that turn the outputs into what is given away."""
    return [step for step in program.all_steps() if step not in program.output_steps]


@pytest.mark.parametrize("precision", KEEPING)
def test_a_map_and_what_the_pool_makes_of_it_come_from_one_kernel(precision: str) -> None:
    element = {"fp16": DType.F16, "bf16": DType.BF16}[precision]
    for program in plan_of(TAPPED, precision, 1, 7).programs:
        steps = steps_of(program)
        assert [step.names for step in steps] == [
            ("a before", "a", "b before", "b", "p"),
            *((f"{y} before", y, *pooled) for y, pooled in (("c", ()), ("d", ("q",)))),
        ]
        first, _, last = steps
        assert first.kernel.source == "conv_first_two.cu"
        assert [defines(step).get("KEEP", 0) for step in steps] == [1, 0, 1]
        assert {value.name: value.shape[1:] for value in program.values} == SHAPES
        assert {value.element for value in program.values} == {element}
        assert program.control.watched == (("p", "c", "q") if precision == "fp16" else ())
        stored = {value.name: value for value in program.values}
        for step, kept, pooled in ((first, "b", "p"), (last, "d", "q")):
            given = arguments(step)
            assert given["kept"].pointer == stored[kept].pointer
            assert given["out"].pointer == stored[pooled].pointer
            assert given["kept"].dimensions[1:3] == SHAPES[kept][:0:-1]
            assert given["kept"].box[1] == 2 * given["out"].box[1]
            assert given["kept"].box[2] == 2 * given["out"].box[2]
        both = program.batch * element.nbytes * sum(np.prod(SHAPES[name]) for name in ("b", "p"))
        assert first.nbytes == program.batch * 4 * 3 * HEIGHT * WIDTH + both + element.nbytes * 9 * 64 * 64


@pytest.mark.parametrize("precision", KEEPING)
def test_the_outputs_are_those_of_the_graph(precision: str) -> None:
    """In its order, each where its kernel has stored it; and nothing that is read later shares their memory."""
    program = plan_of(TAPPED, precision, 3).programs[0]
    assert [y.name for y in program.stored_outputs] == ["b", "d", "q"]
    assert [y.shape for y in program.outputs] == [(3, *SHAPES[name]) for name in ("b", "d", "q")]
    spans = sorted((y.pointer.offset, y.pointer.offset + y.nbytes) for y in program.values)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
