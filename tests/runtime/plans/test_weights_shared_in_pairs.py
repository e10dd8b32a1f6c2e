"""Pairs of float16 that a build computes lie on a Hopper GPU once for a plan and its gradient, where scales agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.plans.test_gradients_in_pairs import net, samples, slopes_of
from tests.support.hopper_on_cpu import hopper_for
from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.runtime.plans.gradients import Gradients, gradient_plan
from vgg16gpu.runtime.plans.plan_cache import PlanCache
from vgg16gpu.runtime.plans.program_cache import ProgramCache, ProgramSpec
from vgg16gpu.runtime.plans.sizes import EnginePlans, added_weights_nbytes

SHAPE = (2, 3, 25, 25)


@pytest.fixture
def hopper(device: Device) -> Any:
    return hopper_for(device)


def brighter(shape: Shape) -> Array:
    return samples(shape) * 64


def planned(hopper: Any, taken: Callable[[Shape], Array]) -> tuple[CompiledModel, CompiledModel]:
    """The plan of the values, and of the gradient."""
    graph = net()
    options = PlanOptions("fp32", "wgmma", samples=lambda: taken(SHAPE))
    there = make_plan(graph, hopper.facts, {graph.input.name: SHAPE}, options)
    return there, gradient_plan(graph, SHAPE, hopper.facts, "fp32", "wgmma", samples)


def computed_nbytes(plan: CompiledModel) -> int:
    return sum(item.nbytes for item in plan.weights.items if item.is_computed)


@pytest.mark.parametrize("taken", [samples, brighter])
def test_a_gradient_beside_a_plan(hopper: Any, taken: Callable[[Shape], Array]) -> None:
    """Of other scales they are others; either way the gradient is that of a device of its own, to the bit."""
    graph, x = net(), images(2, SHAPE[2])
    slopes = slopes_of(graph, x.shape)
    alone = Gradients(graph, hopper, "fp32", "wgmma", samples)
    expected = alone.vjp(x, slopes, [(0, 2)])
    alone.close()
    there, back = planned(hopper, taken)
    added = added_weights_nbytes(back, there)
    computed = computed_nbytes(back)
    assert computed > 0
    assert back.weights.weights_nbytes - added > 0.95 * there.weights.weights_nbytes  # pairs, and what is uploaded
    kept: EnginePlans = PlanCache(hopper)
    options = PlanOptions("fp32", "wgmma")
    values: ProgramCache[Shape] = ProgramCache(
        hopper, options, taken, lambda shape: ProgramSpec(graph, {graph.input.name: shape}, "values"), kept
    )
    first = values.at(SHAPE).executor
    outputs = first.run_once({graph.input.name: x})
    before = kept.nbytes
    gradients = Gradients(graph, hopper, "fp32", "wgmma", samples, kept)
    assert_same_bits(gradients.vjp(x, slopes, [(0, 2)]), expected)
    found = kept.nbytes - before - back.activations_nbytes
    is_same = taken is samples
    assert found == added if is_same else found >= added + computed
    for ours, others in zip(first.run_once({graph.input.name: x}), outputs, strict=True):
        assert_same_bits(ours, others)
    kept.close()
