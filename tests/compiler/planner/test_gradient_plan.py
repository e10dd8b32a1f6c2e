"""Which kernels compute gradients and losses: planned for a Hopper GPU, without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.planner.test_conv_first_two_plan import HOPPER
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.loss import Term, loss_graph
from vgg16gpu.compiler.graph.ops import Array, Conv, Pool, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.program.launch import CompiledModel, LaunchPlan
from vgg16gpu.program.types import DeviceFacts, DType

SHAPE: Shape = (1, 3, 64, 64)
_SAME = Window((3, 3), pads=Pads(1, 1, 1, 1))


def conv(x: str, y: str, out: int, channels: int, *, relu: bool = True) -> Conv:
    weight = np.ones((out, channels, 3, 3), np.float32)
    return Conv(x, y, (y,), weight, np.zeros(out, np.float32), _SAME, relu)


OPS = (
    conv("x", "a", 64, 3),
    conv("a", "b", 64, 64),
    Pool("b", "p", ("p",), "max", MAX_POOL_2X2),
    conv("p", "c", 128, 64),
)


FEATURES = Graph(GraphInput("x", (None,)), OPS, ("b", "c"))


def samples() -> Array:
    return np.zeros((2, *SHAPE[1:]), np.float32)


def plan_of(
    graph: Graph, others: Mapping[str, Shape], precision: str, facts: DeviceFacts = HOPPER, **options: Any
) -> CompiledModel:
    return make_plan(graph, facts, {"x": SHAPE, **others}, PlanOptions(precision, **options))


def families_of(graph: Graph, plan: CompiledModel) -> list[str]:
    return [plan.families[op.y] for op in graph.ops if isinstance(op, Conv)]


@pytest.mark.parametrize(
    ("kernels", "facts", "family"),
    [
        ("auto", HOPPER, "wgmma"),
        ("wgmma", HOPPER, "wgmma"),
        ("mma", HOPPER, "mma"),
        ("auto", replace(HOPPER, compute_capability=(8, 0)), "mma"),
    ],
    ids=["auto", "wgmma", "mma", "Ampere"],
)
def test_and_in_fp32(kernels: str, facts: DeviceFacts, family: str) -> None:
    made = loss_graph(FEATURES, [Term(0), Term(1)], SHAPE, gradient=True)
    plan = plan_of(made.graph, made.targets, "fp32", facts, kernels=kernels, samples=samples)
    assert families_of(made.graph, plan) == [family] * 6
    assert plan.second_pass is None
    (program,), (again,) = plan.programs, plan.second_passes  # of all images, or of none
    assert (again.batch, again.control.watched) == (program.batch, ())
    assert plan.calibration
    assert plan.calibration.program.batch == 1
    observed = [step.label for step in plan.calibration.program.all_steps() if "largest" in step.label]
    assert observed == [f"largest magnitudes of {name}" for name in ("x", "a", "b", "p", "c")]
    values = {value.name: value for value in program.values}
    for name in ("a", "b", "p", "c"):
        assert values[name].element is DType.F16_PAIR
        assert values[name].scale
        assert values[name].factor is None
    for name in ("p/gradient", "a/gradient", "x/gradient"):
        assert values[name].element is DType.F16_PAIR
        assert values[name].scale is None
        assert values[name].factor
        assert name not in program.control.watched  # in range whatever is multiplied
    assert {"c/gradient", "b/gradient 2", "a/gradient 2"} < {*program.control.watched}
    check_way_back(program)
    assert program.output_steps[0].kernel.defines[-1] == ("FACTOR", 1)
    for step in (*program.all_steps(), *plan.calibration.program.all_steps(), *plan.calibration.finish):
        arguments(step)


def check_way_back(program: LaunchPlan) -> None:
    """Between two convolutions stands one pass, and nothing looks for magnitudes by itself."""
    way_back = [step.kernel.name for step in program.steps[-9:]]
    assert [name.partition("_")[0] for name in way_back] == [
        "feature",
        "masked",
        "conv",
        "feature",
        "masked",
        "conv",
        "masked",
        "conv",
        "row",
    ]
    others = {step.kernel.name for step in program.all_steps()}
    assert others.isdisjoint({"largest_f32", "rescale", "convert", "elementwise_f32"})


def test_and_in_fp16_as_many_passes() -> None:
    made = loss_graph(FEATURES, [Term(0), Term(1)], SHAPE, gradient=True, precision="fp16")
    plan = plan_of(made.graph, made.targets, "fp16")
    check_way_back(plan.programs[0])
    elements = {value.name: value.element for value in plan.programs[0].values if value.factor}
    assert {*elements.values()} == {DType.F16, DType.F32}  # the image's few channels are of float32
    assert len(elements) == 6


def test_weights_of_the_way_back_lie_there_as_pairs_and_for_the_second_pass() -> None:
    """4 bytes each, in whole tiles of outputs and blocks of 64 inputs, once more as float32, and vectors."""
    forward = loss_graph(FEATURES, [Term(0), Term(1)], SHAPE, gradient=False)
    back = loss_graph(FEATURES, [Term(0), Term(1)], SHAPE, gradient=True)
    sizes = [
        plan_of(made.graph, made.targets, "fp32", samples=samples).weights.weights_nbytes for made in (forward, back)
    ]
    pairs, floats = (4 * 9 * (128 * 64 + 64 * 64 + 64 * image) for image in (64, 4))
    assert pairs + floats < sizes[1] - sizes[0] < pairs + floats + 3 * 6 * 512 + 1


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        (HOPPER, {"kernels": "wgmma"}),
        (HOPPER, {"kernels": "ffma", "samples": samples}),
        (replace(HOPPER, compute_capability=(7, 5)), {"kernels": "mma", "samples": samples}),
        (replace(HOPPER, compute_capability=(8, 9), name="NVIDIA GeForce RTX 4090"), {"samples": samples}),
        (replace(HOPPER, kind="cpu"), {"samples": samples}),
    ],
    ids=["no samples", "ffma", "mma on Turing", "GeForce", "CPU"],
)
def test_else_fp32_is_on_ffma(facts: DeviceFacts, options: dict[str, Any]) -> None:
    made = loss_graph(FEATURES, [Term(0), Term(1)], SHAPE, gradient=True)
    plan = plan_of(made.graph, made.targets, "fp32", facts, **options)
    assert {*plan.families.values()} == {"ffma"}
    assert plan.calibration is None
