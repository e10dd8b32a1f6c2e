"""Which cards compute float32 from pairs of float16 on mma.sync: as measured, else by the rates of their kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels import mma_pairs
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts, DType

CARD = DeviceFacts("cuda", "NVIDIA A100-SXM4-80GB", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)
CPU = DeviceFacts("cpu", "a processor", 8, (0, 0), 227 << 10, 80 << 30, 80 << 30)
SHAPE = (2, 64, 20, 20)


def card(name: str, capability: tuple[int, int]) -> DeviceFacts:
    return replace(CARD, name=name, compute_capability=capability, shared_nbytes=99 << 10)


def plan_of(facts: DeviceFacts, kernels: str = "auto", *, is_sampled: bool = True) -> CompiledModel:
    """Return the plan of one convolution in fp32."""
    conv = Conv("x", "y", ("y",), np.ones((64, 64, 3, 3), np.float32), None, Window((3, 3), pads=Pads(1, 1, 1, 1)))
    graph = Graph(GraphInput("x", (None, *SHAPE[1:])), (conv,), ("y",))
    samples = (lambda: np.ones((1, *SHAPE[1:]), np.float32)) if is_sampled else None
    return make_plan(graph, facts, [SHAPE], PlanOptions("fp32", kernels, samples=samples))


@pytest.mark.parametrize(
    ("facts", "pays"),
    [
        (CARD, True),
        (card("NVIDIA A40", (8, 6)), True),
        (card("NVIDIA L4", (8, 9)), True),
        (card("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)), True),
        (card("NVIDIA B200", (10, 0)), True),
        (card("NVIDIA GeForce RTX 3090", (8, 6)), False),
        (card("NVIDIA GeForce RTX 4090", (8, 9)), False),
        (card("NVIDIA GeForce RTX 5090", (12, 0)), False),
        (card("Tesla T4", (7, 5)), False),
        (card("a card that none has seen", (13, 0)), False),
        (CPU, False),
    ],
    ids=lambda value: value.name if isinstance(value, DeviceFacts) else "",
)
def test_pairs_are_chosen_where_they_should_be_faster(facts: DeviceFacts, pays: bool) -> None:
    assert mma_pairs.pays(facts) is pays
    plan = plan_of(facts)
    assert plan.families == {"y": "mma" if pays else "ffma"}
    assert plan.arithmetic == ("mma, pairs of float16" if pays else "ffma")
    assert (plan.calibration is not None) is pays  # scales are fixed on samples


@pytest.mark.parametrize("facts", [card("NVIDIA GeForce RTX 4090", (8, 9)), CPU], ids=lambda facts: facts.name)
def test_pairs_can_be_asked_for(facts: DeviceFacts) -> None:
    plan = plan_of(facts, "mma")
    assert plan.families == {"y": "mma"}
    assert dict(plan.programs[0].steps[-1].kernel.defines)["ELEMENT"] == DType.F16_PAIR.number


@pytest.mark.parametrize("measured", ["mma", "ffma"])
@pytest.mark.parametrize("facts", [CARD, card("NVIDIA GeForce RTX 4090", (8, 9))], ids=lambda facts: facts.name)
def test_what_was_measured_goes_before_the_prediction(facts: DeviceFacts, measured: str) -> None:
    assert plan_of(replace(facts, float32_kernels=measured)).families == {"y": measured}


def test_a_measurement_makes_no_pairs_where_there_are_none() -> None:
    for facts in (CPU, card("Tesla T4", (7, 5))):
        assert plan_of(replace(facts, float32_kernels="mma")).families == {"y": "ffma"}


def test_turing_has_none() -> None:
    with pytest.raises(ModelError, match="kernels 'mma': none of them computes an op of this model in fp32 on Tesla"):
        plan_of(card("Tesla T4", (7, 5)), "mma")


def test_hopper_takes_them_where_its_tensor_maps_cannot_be_made() -> None:
    hopper = replace(CARD, name="NVIDIA H200", compute_capability=(9, 0), shared_nbytes=227 << 10)
    assert plan_of(hopper).families == {"y": "mma"}
    assert plan_of(replace(hopper, tensor_maps=True)).families == {"y": "wgmma"}


def test_samples_are_needed() -> None:
    with pytest.raises(ModelError, match="fp32 on tensor cores fixes its scales on typical inputs"):
        plan_of(CARD, is_sampled=False)
