"""Random graphs on a device: every value against float64, and production memory gives the bits of guarded memory."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tests.support.closeness import assert_close
from tests.support.kernel_harness import (
    CONV_TILES,
    FFMA,
    assert_same_bits,
    bounds,
    conv_as,
    largest,
    normal,
    run_graph,
    seeded,
)
from tests.support.random_graphs import graphs
from tests.support.reference import apply
from tests.support.selection import examples
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.runtime.executor import Executor


def weights(*shape: int) -> Array:
    return normal(seeded(str(shape)), *shape)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(graphs(weights), st.sampled_from(sorted(CONV_TILES)), st.integers(1, 4))
def test_every_value_of_a_random_graph(device: Device, case: tuple[Graph, Shape], tile: str, splits: int) -> None:
    graph, shape = case
    x = normal(seeded("input"), *shape)
    with conv_as(CONV_TILES[tile], splits):
        result = run_graph(device, graph, x)
        values = {"x": x} | {op.y: result.value(op.y) for op in graph.ops}
        for op in graph.ops:
            expected = apply(op, values[op.x].astype(np.float64))
            assert_close(values[op.y], expected, *bounds(op, values[op.x], largest), label=repr(op.names))
        for name, output in zip(graph.outputs, result.outputs, strict=True):
            assert_same_bits(output, values[name], name)
        produced = in_production(device, graph, x, FFMA)
    for name, output in zip(graph.outputs, produced, strict=True):
        assert_same_bits(output, values[name], name)


HALF = PlanOptions("fp16", kernels="mma")
COARSER = 2.0**13  # float16's rounding to float32's


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(graphs(weights))
def test_every_value_of_a_random_graph_in_float16(device: Device, case: tuple[Graph, Shape]) -> None:
    """Convolutions and fully connected layers on tensor cores, the rest on float32, conversions between them."""
    graph, shape = case
    assume(any(isinstance(op, Conv | Gemm) for op in graph.ops))
    x = normal(seeded("input"), *shape)
    result = run_graph(device, graph, x, HALF)
    values = {"x": x} | {op.y: result.value(op.y) for op in graph.ops}
    for op in graph.ops:
        expected = apply(op, values[op.x].astype(np.float64))
        atol, rtol = (COARSER * bound for bound in bounds(op, values[op.x], largest))
        assert_close(values[op.y], expected, atol, rtol, label=repr(op.names))
    produced = in_production(device, graph, x, HALF)
    for name, output, again in zip(graph.outputs, result.outputs, produced, strict=True):
        assert_same_bits(output, values[name], name)
        assert_same_bits(again, output, name)


def in_production(device: Device, graph: Graph, x: Array, options: PlanOptions) -> tuple[Array, ...]:
    """The outputs when memory is used again and again, as it is without `keep_values`."""
    plan = make_plan(graph, device.facts, [x.shape], options)
    device.build(plan.kernels)
    resident = Executor(plan, device)
    try:
        resident.run(len(x), x)
        return resident.run(len(x), x).outputs  # the second run starts from what the first has left
    finally:
        resident.close()
