"""The planner, without a device: a simulated run finds every value where its reader looks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernel_signatures import arguments
from tests.support.plan_simulator import Memory, recorded_plan, simulate
from tests.support.random_graphs import SAME, graphs, zeros
from tests.support.selection import examples
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op, Relu, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan, StatusBlock, TmaDescriptor
from vgg16gpu.program.types import ALIGNMENT, Arena, DeviceFacts, Pointer

CPU = DeviceFacts("cpu", "a processor", 2, (0, 0), 232448, 2**34, 2**34)
GPU = DeviceFacts("cuda", "a GPU", 132, (9, 0), 232448, 2**37, 2**37)
HOPPER = replace(GPU, tensor_maps=True)
SMALL_GPU = DeviceFacts("cuda", "a small GPU", 14, (7, 5), 65536, 2**32, 2**32)
DEVICES = (CPU, GPU, HOPPER, HOPPER, SMALL_GPU)
PRECISIONS = ("fp32", "fp16", "bf16")


def conv(x: str, y: str, channels: int, filters: int, *, pool: bool = False) -> Conv:
    return Conv(x, y, (y,), zeros(filters, channels, 3, 3), zeros(filters), SAME, relu=True, pool=pool)


def small_vgg() -> Graph:
    ops: tuple[Op, ...] = (
        conv("x", "a", 3, 64),
        conv("a", "b", 64, 64, pool=True),
        conv("b", "c", 64, 256, pool=True),
        Gemm("c", "d", ("d",), zeros(10, 256 * 4), zeros(10), relu=True, flattens=True),
        Gemm("d", "scores", ("scores",), zeros(5, 10), None),
    )
    return Graph(GraphInput("x", (None, 3, 8, 8)), ops, ("scores",))


# ---- Simulated runs


def planned_for(precision: str, channels: int = 3, **options: Any) -> PlanOptions:
    """Options for both element types; typical inputs are made by nobody."""
    normalisation = Normalisation((0.5,) * channels, (0.25,) * channels)
    return PlanOptions(precision, normalisation=normalisation, samples=lambda: zeros(0), **options)


@examples(200)
@given(graphs(), st.sampled_from(DEVICES), st.sampled_from(PRECISIONS), st.booleans())
def test_no_value_is_overwritten_before_its_last_reader(
    case: tuple[Graph, Shape], facts: DeviceFacts, precision: str, keep_values: bool
) -> None:
    graph, shape = case
    plan, made = recorded_plan(graph, facts, [shape], planned_for(precision, shape[1], keep_values=keep_values))
    for recorded in made:
        for element_type in plan.programs[0].input.entries:
            simulate(recorded, element_type)
    check_pointers(plan)


@examples(150)
@given(graphs())
def test_with_keep_values_none_is_ever_overwritten(case: tuple[Graph, Shape]) -> None:
    """Not even by a second pass."""
    graph, shape = case
    plan, made = recorded_plan(graph, HOPPER, [shape], planned_for("fp32", shape[1], keep_values=True))
    program = plan.programs[0]
    memory = Memory(plan.activations_nbytes)
    for value in program.values:
        memory.write(value.name, value.pointer, value.nbytes)
    for recorded in made[1:]:
        for event in recorded.events:
            if event.writes:
                memory.write("second pass", event.writes.pointer, event.writes.nbytes)
            if event.workspace:
                memory.write("second pass", *event.workspace)
    for value in program.values:
        memory.read(value.name, value.pointer, value.nbytes)


def check_pointers(plan: CompiledModel) -> None:
    sizes = {
        Arena.WEIGHTS: plan.weights.weights_nbytes,
        Arena.ACTIVATIONS: plan.activations_nbytes,
        Arena.STAGING: plan.weights.staging_nbytes,
    }
    packs = [upload.pack for upload in plan.weights.uploads if upload.pack]
    finish = plan.calibration.finish if plan.calibration else ()
    for step in (*packs, *finish, *(step for program in plan.all_programs for step in launched(program))):
        for pointer in pointers(step):
            assert 0 <= pointer.offset < sizes[pointer.arena]
        arguments(step)  # fit the kernel
        assert all(size >= 1 for size in (*step.grid, *step.block))
        assert step.kernel in plan.kernels
    for program in plan.all_programs:
        control = program.control
        assert control.end <= program.output_end <= program.activations_nbytes <= plan.activations_nbytes
        for entry in program.input.entries.values():
            assert 0 <= control.counters.offset - entry.pointer.offset - entry.nbytes < ALIGNMENT
        for value in (*program.values, *program.outputs):
            assert value.pointer.offset % ALIGNMENT == 0
    for upload in plan.weights.uploads:
        assert upload.target.offset + upload.array.nbytes <= sizes[upload.target.arena]


def launched(program: LaunchPlan) -> list[KernelLaunch]:
    return [
        *program.steps,
        *program.output_steps,
        *(step for entry in program.input.entries.values() for step in entry.steps),
    ]


def pointers(step: KernelLaunch) -> list[Pointer]:
    found = [a.pointer if isinstance(a, TmaDescriptor) else a for a in step.arguments]
    return [pointer for pointer in found if isinstance(pointer, Pointer)]


# ---- What a plan says


def test_control_words() -> None:
    """The error word, then a status word for each image, then what else comes back."""
    control = StatusBlock(Pointer(Arena.ACTIVATIONS, 512), Pointer(Arena.ACTIVATIONS, 520), 3, ("a", "b"))
    assert control.status.offset == 524
    assert [control.maxima(index).offset for index in (0, 1)] == [536, 548]
    assert (control.returned_words, control.end) == (10, 560)
    for batch in (1, 5):
        program = make_plan(small_vgg(), CPU, [(batch, 3, 8, 8)]).programs[0]
        assert program.control.counters == program.control.error  # nobody counts in float32 arithmetic
        assert (program.control.watched, program.control.returned_words) == ((), 1 + batch)


def test_an_input_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="Gemm 'd': weights for 1024 features"):
        make_plan(small_vgg(), CPU, [(1, 3, 16, 16)])


@pytest.mark.parametrize("name", ["raw input", "output block", "workspace of y", "value", ""])
def test_an_onnx_name_may_be_anything(name: str) -> None:
    """Names of values and of the planner's own buffers must not meet."""
    other = f"{name}!"
    weight = np.ones((4, 4, 3, 3), np.float32)
    first = Conv(name, other, (other,), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)))
    second = Conv(other, "y", ("y",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)))
    shape = (2, 4, 8, 8)
    plain = Graph(GraphInput("x", shape), (replace(first, x="x"), second), ("y",))
    hostile = Graph(GraphInput(name, shape), (first, second), ("y",))
    expected, found = (make_plan(graph, CPU, [shape]).programs[0] for graph in (plain, hostile))
    assert [step.arguments for step in found.steps] == [step.arguments for step in expected.steps]
    assert found.input.entries["float32"].pointer == expected.input.entries["float32"].pointer


def test_values_beyond_the_kernels_indices_are_refused() -> None:
    graph = Graph(GraphInput("x", (None, 4, None, None)), (Relu("x", "y", ("y",)),), ("y",))
    for shape in ((65535, 4, 1 << 23, 1 << 23), (1, 4, 1 << 15, 1 << 14), (5, 4, 1 << 14, 1 << 15)):
        with pytest.raises(ModelError, match=r"is too large: an image may have 2\^31 values"):
            make_plan(graph, CPU, [shape])


def test_a_program_prints_as_a_table_whose_columns_do_not_touch() -> None:
    weight = np.ones((64, 512, 3, 3), np.float32)
    op = Conv("x", "y", ("y",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)), relu=True, pool=True)
    facts = DeviceFacts("cuda", "a GPU", 132, (9, 0), 232448, 1 << 36, 1 << 36)
    graph = Graph(GraphInput("x", (1, 512, 14, 14)), (op,), ("y",))
    program = make_plan(graph, facts, [(1, 512, 14, 14)], PlanOptions(kernels="ffma")).programs[0]
    lines = str(program).splitlines()
    assert len({line.index(step.kernel.label) for line, step in zip(lines[3:], program.steps, strict=False)}) == 1
    assert all(f"{step.label} " in line for line, step in zip(lines[3:], program.steps, strict=False))
    assert "group sums" in str(program)
