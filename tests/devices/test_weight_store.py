"""Weights once for several plans; plans for a GPU are brought to a device that remembers what lies where."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import normal, seeded
from tests.support.traced_device import HOPPER, Traced
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Conv, Gemm, GlobalPool
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.compiler.quantization.scheme import Scale, quantise, quantised_inputs
from vgg16gpu.devices.weights import WeightCache
from vgg16gpu.program.launch import CompiledModel, KernelLaunch
from vgg16gpu.runtime.executor import Executor

SIZES = ((16, 16), (33, 47), (224, 96))
PRECISIONS = ("fp32", "fp16", "int8")


def net() -> Graph:
    """A small VGG with an adaptive pool before its head."""
    random = seeded("weight store")

    def conv(x: str, y: str, channels: int, filters: int, *, pool: bool) -> Conv:
        weight = normal(random, filters, channels, 3, 3)
        return Conv(x, y, (y,), weight, normal(random, filters), Window((3, 3), pads=Pads(1, 1, 1, 1)), True, pool)

    ops = (
        conv("x", "a", 3, 64, pool=False),
        conv("a", "b", 64, 64, pool=True),
        conv("b", "c", 64, 128, pool=True),
        conv("c", "d", 128, 128, pool=False),
        GlobalPool("d", "e", ("e",), "average"),
        Gemm("e", "f", ("f",), normal(random, 96, 128), normal(random, 96), relu=True, flattens=True),
        Gemm("f", "y", ("y",), normal(random, 20, 96), normal(random, 20)),
    )
    return Graph(GraphInput("x", (None, 3, None, None)), ops, ("y",))


GRAPH = net()


def options(precision: str) -> PlanOptions:
    known = {name: Scale(4.0, signed) for name, signed in quantised_inputs(GRAPH).items()}
    return PlanOptions(
        precision,
        normalisation=Normalisation((0.5,) * 3, (0.25,) * 3),
        quantised=quantise(GRAPH, known) if precision == "int8" else None,
    )


OPTIONS = {precision: options(precision) for precision in PRECISIONS}


def planned(precision: str, sides: tuple[int, int], batches: Sequence[int] = (1, 8)) -> CompiledModel:
    chosen = replace(OPTIONS[precision], samples=lambda: np.zeros((1, 3, *sides), np.float32))
    return make_plan(GRAPH, HOPPER, [(batch, 3, *sides) for batch in batches], chosen)


def reads(device: Traced, executor: Executor) -> list[list[str]]:
    """What all launches of a plan read of the weights."""
    device.read.clear()
    plan = executor.plan
    for program in (*plan.programs, *([plan.second_pass] if plan.second_pass else [])):
        for element_type in program.input.entries:
            executor.bind(program.all_steps(element_type))()
    return [*device.read]


def of_one(precision: str, sides: tuple[int, int], device: Traced) -> list[list[str]]:
    with closing(Executor(planned(precision, sides), device)) as alone:  # type: ignore[arg-type]
        return reads(device, alone)


def store_on(device: Traced) -> WeightCache:
    return WeightCache(device)  # type: ignore[arg-type]  # it has what a store and a plan ask of a device, and no more


def loaded(store: WeightCache, plan: CompiledModel) -> Executor:
    return Executor(plan, store.device, store.lease(plan.weights))


def shape_of(step: KernelLaunch) -> Any:
    """Magnitudes that differ from size to size."""
    return step.grid, step.arguments[2:]


@pytest.mark.parametrize(("precision", "varies"), [("fp32", True), ("int8", False)])
def test_every_launch_finds_the_weights_that_it_finds_in_an_engine_of_its_size(precision: str, varies: bool) -> None:
    device = Traced(*([shape_of] if varies else []))
    store = store_on(device)
    with ExitStack() as stack:
        for sides in SIZES:
            executor = stack.enter_context(closing(loaded(store, planned(precision, sides))))
            found = reads(device, executor)
            assert any("nothing" not in tags and len(tags) > 1 for tags in found)
            assert found == of_one(precision, sides, device)
        assert store.nbytes == sum(block.nbytes for block in store._blocks)
        assert store.nbytes > 0
    assert store.nbytes == 0
    assert not device.live


def test_other_scales_are_other_weights_and_only_these() -> None:
    device = Traced(shape_of)
    store = store_on(device)
    with closing(loaded(store, planned("fp32", SIZES[0]))) as first:
        nbytes = store.nbytes
        with closing(loaded(store, planned("fp32", SIZES[1]))) as second:
            computed = sum(-(-item.nbytes // 256) * 256 for item in second.plan.weights.items if item.is_computed)
            assert store.nbytes == nbytes + computed
            assert 0 < computed < nbytes
            own = {tag for tags in reads(device, second) for tag in tags}
            assert own - {tag for tags in reads(device, first) for tag in tags}
        assert store.nbytes == nbytes


def test_weights_stay_with_the_last_plan_that_uses_them() -> None:
    device = Traced(shape_of)
    store = store_on(device)
    first, second = (loaded(store, planned("fp32", sides)) for sides in SIZES[:2])
    expected = reads(device, second)
    first.close()
    assert reads(device, second) == expected
    third = loaded(store, planned("fp32", SIZES[0]))  # finds what the first has left
    assert reads(device, third) == of_one("fp32", SIZES[0], device)
    second.close()
    third.close()
    third.close()
    assert not device.live


def test_equal_numbers_at_another_place_are_the_same_weights() -> None:
    """A session loads its model anew for each shape, and folds constants anew."""
    device = Traced()
    store = store_on(device)
    again = make_plan(net(), HOPPER, [(1, 3, 16, 16)], OPTIONS["fp16"])
    with closing(loaded(store, planned("fp16", (16, 16), (1,)))):
        nbytes = store.nbytes
        with closing(loaded(store, again)):
            assert store.nbytes == nbytes


def test_other_numbers_are_not() -> None:
    device = Traced()
    store = store_on(device)
    other = net()
    other.ops[3].weight[-1, -1, -1, -1] += 1  # type: ignore[union-attr]
    again = make_plan(other, HOPPER, [(1, 3, 16, 16)], OPTIONS["fp16"])
    with closing(loaded(store, planned("fp16", (16, 16), (1,)))) as first:
        nbytes = store.nbytes
        with closing(loaded(store, again)) as second:
            assert nbytes < store.nbytes < 2 * nbytes
            assert reads(device, first) != reads(device, second)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_pieces_of_a_plan_are_all_of_its_arena(precision: str) -> None:
    plan = planned(precision, SIZES[0])
    ends = [item.offset + -(-item.nbytes // 256) * 256 for item in plan.weights.items]
    assert [item.offset for item in plan.weights.items] == [0, *ends[:-1]]
    assert ends[-1] == plan.weights.weights_nbytes
