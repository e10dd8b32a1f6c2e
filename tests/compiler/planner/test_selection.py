"""Which kernels compute a graph: by what the device can do, and what the op, its place and the user ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.random_graphs import SAME, zeros
from vgg16gpu.compiler import op_kernels as ops
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op, Relu, Softmax
from vgg16gpu.compiler.op_kernels.base import InputKernel
from vgg16gpu.compiler.planner.selection import KernelAssignment, PlanOptions, select_kernels
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import DeviceFacts

HOPPER = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
CPU = DeviceFacts("cpu", "a processor", 2, (0, 0), 232448, 2**34, 2**34)


def conv(x: str, y: str, channels: int, filters: int, *, pool: bool = False) -> Conv:
    return Conv(x, y, (y,), zeros(filters, channels, *SAME.kernel), zeros(filters), SAME, relu=True, pool=pool)


def gemm(x: str, y: str, features: int, outputs: int, *, flattens: bool = False) -> Gemm:
    return Gemm(x, y, (y,), zeros(outputs, features), zeros(outputs), flattens=flattens)


def graph_of(*ops: Op, outputs: tuple[str, ...] | None = None, channels: int = 3) -> Graph:
    return Graph(GraphInput("x", (None, channels, 8, 8)), ops, outputs or (ops[-1].y,))


NET = graph_of(
    conv("x", "a", 3, 20),
    conv("a", "b", 20, 70, pool=True),
    gemm("b", "c", 70 * 16, 30, flattens=True),
    Softmax("c", "d", ("d",)),
)


def selection_of(graph: Graph, facts: DeviceFacts = HOPPER, options: PlanOptions | None = None) -> KernelAssignment:
    shapes = infer_shapes(graph, (1, *(size or 1 for size in graph.input.shape[1:])))
    return select_kernels(graph, facts, shapes, options or PlanOptions())


def families(selection: KernelAssignment) -> dict[str, str]:
    return {name: op_kernel.family for name, op_kernel in selection.op_kernels.items()}


def takes_input(selection: KernelAssignment) -> bool:
    return isinstance(selection.op_kernels[selection.graph.ops[0].y], InputKernel)


# ---- What the device can do


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_hopper(precision: str) -> None:
    selection = selection_of(NET, options=PlanOptions(precision))
    assert families(selection) == {"a": "wgmma", "b": "wgmma", "c": "wgmma", "d": "ffma"}
    assert takes_input(selection)
    assert selection.splits_float32 == (precision == "fp32")


# ---- What the op is


@pytest.mark.parametrize(
    ("precision", "capability", "family"),
    [
        ("fp32", (8, 0), "mma"),  # from pairs of float16
        ("fp32", (7, 5), "ffma"),
        ("fp16", (7, 0), "ffma"),
        ("fp16", (7, 5), "mma"),
        ("bf16", (7, 5), "ffma"),
        ("bf16", (8, 0), "mma"),
        ("fp16", (12, 0), "mma"),
    ],
)
def test_tensor_cores_of_other_cards(precision: str, capability: tuple[int, int], family: str) -> None:
    selection = selection_of(NET, replace(HOPPER, compute_capability=capability), PlanOptions(precision))
    assert families(selection) == {"a": family, "b": family, "c": family, "d": "ffma"}


# ---- Who takes the input in


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (graph_of(conv("x", "a", 3, 20)), True),
        (graph_of(conv("x", "a", 4, 20), channels=4), True),
        (graph_of(conv("x", "a", 5, 20), channels=5), False),  # more channels than the kernel has slots
        (graph_of(conv("x", "a", 3, 20, pool=True)), False),
        (graph_of(conv("x", "a", 3, 20), outputs=("x", "a")), False),  # the input is wanted back
        (graph_of(conv("x", "a", 3, 20), conv("x", "b", 3, 20), outputs=("a", "b")), False),  # two read it
        (graph_of(gemm("x", "a", 192, 20, flattens=True)), False),
        (graph_of(Relu("x", "a", ("a",)), conv("a", "b", 3, 20)), False),
    ],
    ids=["3", "4", "5", "pooled", "wanted", "read twice", "gemm", "later"],
)
def test_the_first_convolution_takes_the_input_in(graph: Graph, expected: bool) -> None:
    assert takes_input(selection_of(graph)) is expected
    others = [op_kernel for op, op_kernel in selection_of(graph).op_kernels.items() if op != graph.ops[0].y]
    assert not any(isinstance(op_kernel, InputKernel) for op_kernel in others)


# ---- What the user asks for


def test_a_family_that_can_do_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="kernels 'wgmma': none of them computes an op of this model in fp32 on a"):
        selection_of(NET, CPU, PlanOptions(kernels="wgmma"))
    with pytest.raises(ModelError, match="accepted: auto, wgmma, mma, ffma"):
        selection_of(graph_of(Relu("x", "a", ("a",))), HOPPER, PlanOptions(kernels="wgmma"))


# ---- Layers


def test_the_step_of_a_value_is_that_of_who_writes_or_reads_it() -> None:
    none = np.zeros((1, 1), np.int8)
    quantised = {
        "a": QuantisedOp(none, zeros(1), Scale(0.5, True), Scale(0.25, False)),
        "b": QuantisedOp(none, zeros(1), Scale(0.25, False), None),
        "c": QuantisedOp(none, zeros(1), Scale(0.125, False), None),
    }
    selection = selection_of(NET, options=PlanOptions("int8", quantised=quantised))
    assert [selection.steps.get(name, 1.0) for name in ("x", "a", "b", "c", "d")] == [0.5, 0.25, 0.125, 1.0, 1.0]


def test_the_planner_never_chooses_between_equals():
    """Of the ways that one family has for an op each has a priority of its own."""
    every = [op_kernel for name in ops.modules() for op_kernel in ops.kernels_in(name)]
    ranks = [(op_kernel.op_type, op_kernel.family, op_kernel.priority) for op_kernel in every]
    assert len(set(ranks)) == len(ranks)
