"""Which kernels compute gradients and losses: planned for a Hopper GPU, without one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.compiler.planner.test_conv_first_two_plan import HOPPER
from vgg16gpu.compiler.graph.gradient import gradient_graph
from vgg16gpu.compiler.graph.loss import Term, loss_graph
from vgg16gpu.compiler.graph.ops import Conv, Graph, GraphInput, Pool, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.planner.options import PlanOptions
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.program.plans import Plan

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


def plan_of(graph: Graph, others: Mapping[str, Shape], precision: str) -> Plan:
    return make_plan(graph, HOPPER, {"x": SHAPE, **others}, PlanOptions(precision))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_convolutions_there_and_back_are_on_tensor_cores_in_bf16(precision: str) -> None:
    made = loss_graph(Graph(GraphInput("x", (None,)), OPS, ("b", "c")), [Term(0), Term(1)], SHAPE, gradient=True)
    plan = plan_of(made.graph, made.targets, precision)
    families = [plan.families[op.y] for op in made.graph.ops if isinstance(op, Conv)]
    assert families == (["wgmma"] * 5 + ["mma"] if precision == "bf16" else ["ffma"] * 6)  # the last one has 3 outputs
    assert plan.second_pass is None
    assert plan.calibration is None


def test_a_copy_of_a_cotangent_does_not_come_before_the_op_that_takes_the_input_itself() -> None:
    """A convolution without a ReLU reads the cotangent, which the host left plain."""
    ops = (*OPS[:2], conv("b", "y", 64, 64, relu=False))
    made = gradient_graph(Graph(GraphInput("x", (None,)), ops, ("y",)), SHAPE)
    (program,) = plan_of(made.graph, made.cotangents, "bf16").programs
    (first,) = program.input.entries["float32"].steps
    assert first.kernel.name == "conv_first"
    assert program.steps[0].kernel.name.startswith("conv_wgmma")
