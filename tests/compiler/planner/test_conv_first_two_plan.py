"""The planning of the first two convolutions as one: when it is done, and how the launch is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.kernel_signatures import arguments
from tests.support.random_graphs import SAME, zeros
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op, Relu
from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.compiler.op_kernels.conv import conv_first_two
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import KernelAssignment, PlanOptions, select_kernels
from vgg16gpu.compiler.quantization.scheme import Scale, quantise, quantised_inputs
from vgg16gpu.program.launch import CompiledModel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, DType

HOPPER = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
PRECISIONS = ("fp16", "bf16", "int8")
ELEMENTS = {"fp16": DType.F16, "bf16": DType.BF16, "int8": DType.U8}
HEIGHT, WIDTH = 30, 37


def conv(x: str, y: str, channels: int, filters: int, **options: Any) -> Conv:
    options = {"relu": True} | options
    return Conv(x, y, (f"{y} before", y), zeros(filters, channels, 3, 3), zeros(filters), SAME, **options)


FIRST, SECOND = conv("x", "a", 3, 64), conv("a", "b", 64, 64, pool=True)
THIRD = conv("b", "c", 64, 128)
LAST = Gemm("c", "d", ("d",), zeros(70, 128 * (HEIGHT // 2) * (WIDTH // 2)), None, flattens=True)


def graph_of(*ops: Op, outputs: tuple[str, ...] = (), channels: int = 3) -> Graph:
    return Graph(GraphInput("x", (None, channels, HEIGHT, WIDTH)), ops, outputs or (ops[-1].y,))


NET = graph_of(FIRST, SECOND, THIRD, LAST)


def options_of(graph: Graph, precision: str, **options: Any) -> PlanOptions:
    if precision == "int8":
        steps = {"x": 0.5, "a": 0.25, "b": 0.125}
        signed = quantised_inputs(graph)
        scales = {name: Scale(steps.get(name, 0.0625), is_signed) for name, is_signed in signed.items()}
        options["quantised"] = quantise(graph, scales)
    normalisation = Normalisation((0.5,) * 3, (0.25,) * 3) if graph.input.shape[1] == 3 else None
    return PlanOptions(precision, normalisation=normalisation, **options)


def selection_of(graph: Graph, precision: str = "fp16", **options: Any) -> KernelAssignment:
    shapes = infer_shapes(graph, (1, *(size or 1 for size in graph.input.shape[1:])))
    return select_kernels(graph, HOPPER, shapes, options_of(graph, precision, **options))


def plan_of(precision: str, *batches: int, **options: Any) -> CompiledModel:
    shapes = [(batch, 3, HEIGHT, WIDTH) for batch in batches]
    return make_plan(NET, HOPPER, shapes, options_of(NET, precision, **options))


def is_chained(selection: KernelAssignment) -> bool:
    chains = [op_kernel is conv_first_two.OP_KERNEL for op_kernel in selection.op_kernels.values()]
    assert not any(chains[1:])
    return chains[0]


def defines(step: KernelLaunch) -> dict[str, int]:
    return dict(step.kernel.defines)


# ---- When


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_convolutions_are_one_launch(precision: str) -> None:
    for program in plan_of(precision, 1, 7).programs:
        for element_type in ("float32", "uint8"):
            first, *others = program.all_steps(element_type)
            assert first.kernel.source == "conv_first_two.cu"
            assert len(others) == 2
            assert first.names == ("a before", "a", "b before", "b")
            assert first.label == "conv 3x3 3->64 + relu, conv 3x3 64->64 + relu + pool"
            assert first.flop == program.batch * HEIGHT * WIDTH * 2 * 9 * 64 * (3 + 64)
            source = 3 * HEIGHT * WIDTH * (4 if element_type == "float32" else 1)
            size = ELEMENTS[precision].nbytes
            stored = 64 * (HEIGHT // 2) * (WIDTH // 2) * size
            assert first.nbytes == program.batch * (source + stored) + 9 * 64 * 64 * size
        assert [value.name for value in program.values] == ["b", "c", "d"]
        assert program.control.watched == (("b", "c") if precision == "fp16" else ())
    assert plan_of(precision, 1).families == dict.fromkeys("bcd", "wgmma")


OTHERS = {
    "the value between is an output": graph_of(FIRST, SECOND, outputs=("a", "b")),
    "somebody else reads it": graph_of(FIRST, SECOND, Relu("a", "r", ("r",)), outputs=("b", "r")),
    "the input is an output": graph_of(FIRST, SECOND, outputs=("x", "b")),
    "somebody else reads the input": graph_of(FIRST, SECOND, Relu("x", "r", ("r",)), outputs=("b", "r")),
    "five channels": graph_of(conv("x", "a", 5, 64), SECOND, channels=5),
    "no pool": graph_of(FIRST, conv("a", "b", 64, 64)),
    "more channels between": graph_of(conv("x", "a", 3, 65), conv("a", "b", 65, 64, pool=True)),
    "more channels out": graph_of(FIRST, conv("a", "b", 64, 65, pool=True)),
    "few channels between": graph_of(conv("x", "a", 3, 8), conv("a", "b", 8, 64, pool=True)),
    "a pool between": graph_of(conv("x", "a", 3, 64, pool=True), SECOND),
    "an op between": graph_of(FIRST, Relu("a", "r", ("r",)), conv("r", "b", 64, 64, pool=True)),
    "one convolution": graph_of(FIRST),
    "later in the net": graph_of(Relu("x", "r", ("r",)), conv("r", "a", 3, 64), SECOND),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_graphs_stay_as_they_are(why: str) -> None:
    graph = OTHERS[why]
    selection = selection_of(graph)
    assert selection.graph is graph
    assert not is_chained(selection)


def test_signs_have_to_be_the_same() -> None:
    """The kernel has one element; the value between has a sign without its ReLU."""
    others = conv("b", "c", 64, 64), conv("c", "d", 64, 64)
    for first, second in ((True, False), (False, True), (False, False), (True, True)):
        graph = graph_of(replace(FIRST, relu=first), replace(SECOND, relu=second), *others)
        assert is_chained(selection_of(graph, "int8")) is (first == second)
        assert is_chained(selection_of(graph, "fp16"))


# ---- The launch


@pytest.mark.parametrize("element_type", ["float32", "uint8"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_arguments(precision: str, element_type: str) -> None:
    element = ELEMENTS[precision]
    apart = {p.batch: p for p in plan_of(precision, 1, 7, 300, keep_values=True).programs}
    for program in plan_of(precision, 1, 7, 300).programs:
        step = program.all_steps(element_type)[0]
        given, macros = arguments(step), defines(step)
        first, second = (arguments(one) for one in apart[program.batch].all_steps(element_type)[:2])
        block = 128 // element.nbytes if element.nbytes == 2 else 64
        rows, warpgroups = macros["TILE_ROWS"], macros["WARPGROUPS"]
        assert given["weight2"] == replace(second["weight"], box=(block, 64, 9))
        y = program.values[0]
        assert given["out"].pointer == y.pointer
        assert given["out"].dimensions == (64, WIDTH // 2, HEIGHT // 2, program.batch)
        assert given["out"].box == (64, 4, rows // 2, 1)
        assert given["source"] == program.input.entries[element_type].pointer
        same = {"weight": "weight", "weight_scale": "weight_scale", "bias": "bias", "dequant": "dequant"}
        same |= {"scale": "out_scale", "in_scale": "in_scale", "mean_scale": "mean_scale", "mean_shift": "mean_shift"}
        assert {name: given[name] for name in same} == {name: first[other] for name, other in same.items()}
        finish2 = [given[name] for name in ("bias2", "dequant2", "scale2")]
        assert finish2 == [second[name] for name in ("bias", "dequant", "out_scale")]
        control = program.control
        word = control.maxima(0) if precision == "fp16" else control.error
        assert given["maxima"] == word
        assert (given["maxima_stride"], given["status"], given["error"]) == (1, control.status, control.error)
        assert (given["step"], given["H"], given["W"]) == (1, HEIGHT, WIDTH)
        assert (given["activation"], given["activation2"]) == (1, 1)
        tiles_x, tiles_y = given["tiles_x"], given["tiles_y"]
        assert (tiles_x, tiles_y) == (ceil_div(WIDTH - 1, 8), ceil_div(HEIGHT, rows))
        assert given["tiles"] == tiles_x * tiles_y * program.batch
        assert step.grid == (min(132, ceil_div(given["tiles"], warpgroups)), 1, 1)
        assert step.block == (128 * warpgroups, 1, 1)
        assert step.shared <= HOPPER.shared_nbytes
        assert step.programmatic == (program.batch <= PROGRAMMATIC_BATCH)  # before it the input comes
        assert (macros["ELEMENT"], macros["IN_CHANNELS"]) == (element.number, 3)
        assert macros["SOURCE"] == (element_type == "uint8")
