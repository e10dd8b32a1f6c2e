"""The planner, without a device: a simulated run finds every value where its reader looks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_graphs import SAME, graphs, zeros
from vgg16gpu.errors import ModelError
from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import (
    Conv,
    Gemm,
    Graph,
    GraphInput,
    Op,
    Pads,
    Relu,
    Shape,
    Window,
    infer_shapes,
)
from vgg16gpu.ops import lowering
from vgg16gpu.ops.preprocess import Normalisation
from vgg16gpu.plan import make_plan
from vgg16gpu.program import ALIGNMENT, Arena, Layout, Plan, Pointer, Program, Value

CPU = DeviceFacts("cpu", "a processor", 2, (0, 0), 232448, 2**34, 2**34)
GPU = DeviceFacts("cuda", "a GPU", 132, (9, 0), 232448, 2**37, 2**37)
SMALL_GPU = DeviceFacts("cuda", "a small GPU", 14, (7, 5), 65536, 2**32, 2**32)
DEVICES = (CPU, GPU, SMALL_GPU)


def conv(x: str, y: str, channels: int, filters: int, *, pool: bool = False) -> Conv:
    return Conv(x, y, (y,), zeros(filters, channels, 3, 3), zeros(filters), SAME, relu=True, pool=pool)


def small_vgg(outputs: tuple[str, ...] = ("scores",)) -> Graph:
    ops: tuple[Op, ...] = (
        conv("x", "a", 3, 64),
        conv("a", "b", 64, 64, pool=True),
        conv("b", "c", 64, 256, pool=True),
        Gemm("c", "d", ("d",), zeros(10, 256 * 4), zeros(10), relu=True, flattens=True),
        Gemm("d", "scores", ("scores",), zeros(5, 10), None),
    )
    return Graph(GraphInput("x", (None, 3, 8, 8)), ops, outputs)


# ---- A simulated run


class Simulator:
    """Activation memory in words; each holds the number of the last thing written there."""

    def __init__(self, nbytes: int) -> None:
        assert nbytes % 4 == 0
        self.words = np.zeros(nbytes // 4, np.int64)
        self.written: list[str] = ["nothing"]

    def place(self, pointer: Pointer, nbytes: int) -> npt.NDArray[np.int64]:
        assert pointer.arena is Arena.ACTIVATIONS
        assert 0 <= pointer.offset <= pointer.offset + nbytes <= 4 * self.words.size
        return self.words[pointer.offset // 4 : (pointer.offset + nbytes) // 4]

    def write(self, what: str, pointer: Pointer, nbytes: int) -> None:
        self.written.append(what)
        self.place(pointer, nbytes)[:] = len(self.written) - 1

    def read(self, what: str, pointer: Pointer, nbytes: int) -> None:
        found = {self.written[i] for i in np.unique(self.place(pointer, nbytes))}
        assert found == {what}, f"{what} at {pointer} is overwritten with {found}"


def simulate(graph: Graph, program: Program, facts: DeviceFacts) -> None:
    """Run the graph on names; every read finds what was written last to that name, whole."""
    memory = Simulator(program.activations_nbytes)
    values = {value.name: value for value in program.values}
    shapes = infer_shapes(graph, program.input.shape)
    status_nbytes = 4 * program.batch * program.status_per_image
    raw_nbytes = 4 * math.prod(program.input.shape)
    memory.write("raw", program.input.pointer, raw_nbytes)
    memory.write("status", program.status, status_nbytes)
    memory.write(graph.input.name, values[graph.input.name].pointer, values[graph.input.name].nbytes)
    memory.read("raw", program.input.pointer, raw_nbytes)  # not overwritten while it is read
    for op in graph.ops:
        x, y = values[op.x], values[op.y]
        memory.read(op.x, x.pointer, x.nbytes)
        for pointer, nbytes in workspaces(program, op, shapes, facts):
            memory.write("workspace", pointer, nbytes)
            memory.write(op.y, y.pointer, y.nbytes)
            memory.read("workspace", pointer, nbytes)
        memory.write(op.y, y.pointer, y.nbytes)
        memory.read(op.x, x.pointer, x.nbytes)  # neither
    for output in program.outputs:
        if values[output.name].pointer != output.pointer:
            memory.read(output.name, values[output.name].pointer, values[output.name].nbytes)
            memory.write(output.name, output.pointer, output.nbytes)
    for output in program.outputs:
        memory.read(output.name, output.pointer, output.nbytes)
    memory.read("status", program.status, status_nbytes)


def workspaces(
    program: Program, op: Op, shapes: dict[str, Shape] | object, facts: DeviceFacts
) -> list[tuple[Pointer, int]]:
    """Where the step of a convolution puts its group sums, if it does."""
    nbytes = lowering(op).workspace_nbytes(op, shapes[op.x], facts)  # type: ignore[index]
    steps = [step for step in program.steps if step.names == op.names and step.kernel.name == "conv_igemm_f32"]
    return [(step.arguments[1], nbytes) for step in steps if nbytes]  # type: ignore[misc]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(graphs(), st.sampled_from(DEVICES))
def test_no_value_is_overwritten_before_its_last_reader(case: tuple[Graph, Shape], facts: DeviceFacts) -> None:
    graph, shape = case
    simulate(graph, make_plan(graph, facts, [shape]).programs[0], facts)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(graphs(), st.sampled_from(DEVICES))
def test_with_keep_values_none_is_ever_overwritten(case: tuple[Graph, Shape], facts: DeviceFacts) -> None:
    graph, shape = case
    program = make_plan(graph, facts, [shape], keep_values=True).programs[0]
    memory = Simulator(program.activations_nbytes)
    for value in program.values:
        memory.write(value.name, value.pointer, value.nbytes)
    for value in program.values:
        memory.read(value.name, value.pointer, value.nbytes)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(graphs(), st.sampled_from(DEVICES))
def test_every_pointer_lies_in_its_arena(case: tuple[Graph, Shape], facts: DeviceFacts) -> None:
    graph, shape = case
    normalisation = Normalisation((0.5,) * shape[1], (0.25,) * shape[1])
    plan = make_plan(graph, facts, [shape], normalisation=normalisation)
    check_pointers(plan)


def check_pointers(plan: Plan) -> None:
    for program in plan.programs:
        sizes = {
            Arena.WEIGHTS: plan.weights.weights_nbytes,
            Arena.ACTIVATIONS: program.activations_nbytes,
            Arena.STAGING: plan.weights.staging_nbytes,
        }
        packs = [upload.pack for upload in plan.weights.uploads if upload.pack]
        for step in (*program.steps, *program.input.steps.values(), *packs):
            for pointer in (argument for argument in step.arguments if isinstance(argument, Pointer)):
                assert 0 <= pointer.offset < sizes[pointer.arena]
                assert pointer.offset % 16 == 0  # what a 16-byte access needs; only slabs of weights are not ALIGNED
                assert pointer.offset % ALIGNMENT == 0 or pointer.arena is Arena.WEIGHTS
            assert all(size >= 1 for size in (*step.grid, *step.block))
            assert step.kernel in plan.kernels
        assert program.output.offset + program.output_nbytes <= program.activations_nbytes
        assert program.status.offset + 4 * program.batch * program.status_per_image == (
            program.output.offset + program.output_nbytes
        )
    for upload in plan.weights.uploads:
        size = plan.weights.staging_nbytes if upload.pack else plan.weights.weights_nbytes
        assert upload.target.offset + upload.array.nbytes <= size


# ---- What a plan says


def test_batches_share_the_weights_and_come_smallest_first() -> None:
    plan = make_plan(small_vgg(), CPU, [(4, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8)])
    alone = make_plan(small_vgg(), CPU, [(1, 3, 8, 8)])
    assert [program.batch for program in plan.programs] == [1, 2, 4]
    assert plan.weights.weights_nbytes == alone.weights.weights_nbytes
    assert len(plan.weights.uploads) == len(alone.weights.uploads)
    largest = max(program.activations_nbytes for program in plan.programs)
    assert plan.device_nbytes == plan.weights.weights_nbytes + largest
    check_pointers(plan)


def test_an_output_that_nobody_reads_is_written_in_place() -> None:
    program = make_plan(small_vgg(), CPU, [(1, 3, 8, 8)]).programs[0]
    assert program.outputs[0].layout is Layout.PLAIN
    assert program.values[-1] is program.outputs[0]
    assert [step.kernel.source for step in program.steps] == ["conv_igemm.cu"] * 3 + ["gemm_splitk.cu"] * 2


def test_other_outputs_are_converted_at_the_end() -> None:
    program = make_plan(small_vgg(("b", "scores", "d")), CPU, [(2, 3, 8, 8)]).programs[0]
    assert [output.name for output in program.outputs] == ["b", "scores", "d"]
    assert [output.shape for output in program.outputs] == [(2, 64, 4, 4), (2, 5), (2, 10)]
    assert [step.label for step in program.steps[-2:]] == ["output to ONNX layout"] * 2
    ends = [output.pointer.offset + output.nbytes for output in program.outputs]
    starts = [output.pointer.offset for output in (*program.outputs[1:],)] + [program.status.offset]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))


def test_input_steps() -> None:
    plain = make_plan(small_vgg(), CPU, [(1, 3, 8, 8)]).programs[0]
    assert set(plain.input.steps) == {"float32"}
    bytes_too = make_plan(small_vgg(), CPU, [(1, 3, 8, 8)], normalisation=Normalisation((0,) * 3, (1,) * 3)).programs[0]
    assert set(bytes_too.input.steps) == {"float32", "uint8"}


def test_a_reduction_is_split_where_the_device_would_stand_idle() -> None:
    kernels = [step.kernel.name for step in make_plan(small_vgg(), GPU, [(1, 3, 8, 8)]).programs[0].steps]
    assert kernels.count("conv_igemm_reduce_f32") == 2  # the first layer has one group only
    kernels = [step.kernel.name for step in make_plan(small_vgg(), GPU, [(3000, 3, 8, 8)]).programs[0].steps]
    assert "conv_igemm_reduce_f32" not in kernels


def test_an_input_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="Gemm 'd': weights for 1024 features"):
        make_plan(small_vgg(), CPU, [(1, 3, 16, 16)])


def test_the_plan_depends_on_nothing_but_its_arguments() -> None:
    def text(plan: Plan) -> str:
        return repr([(program.steps, program.outputs, program.values) for program in plan.programs])

    shapes: Sequence[Shape] = [(1, 3, 8, 8), (4, 3, 8, 8)]
    assert text(make_plan(small_vgg(), GPU, shapes)) == text(make_plan(small_vgg(), GPU, shapes))


def test_value_sizes() -> None:
    pointer = Pointer(Arena.ACTIVATIONS, 0)
    value = Value("v", (2, 5, 7, 3), Layout.NHWC, pointer)
    assert (value.stored_shape, value.pitch, value.nbytes) == ((2, 7, 3, 8), 8, 4 * 2 * 7 * 3 * 8)
    value = Value("v", (2, 5), Layout.PLAIN, pointer)
    assert (value.stored_shape, value.pitch, value.nbytes) == ((2, 5), 5, 40)


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
    assert found.input.pointer == expected.input.pointer


def test_values_beyond_the_kernels_indices_are_refused() -> None:
    graph = Graph(GraphInput("x", (None, 4, None, None)), (Relu("x", "y", ("y",)),), ("y",))
    for shape in ((65535, 4, 1 << 23, 1 << 23), (1, 4, 1 << 15, 1 << 14), (5, 4, 1 << 14, 1 << 15)):
        with pytest.raises(ModelError, match=r"is too large: an image may have 2\^31 values"):
            make_plan(graph, CPU, [shape])


def test_a_program_prints_as_a_table_whose_columns_do_not_touch() -> None:
    weight = np.ones((64, 512, 3, 3), np.float32)
    op = Conv("x", "y", ("y",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)), relu=True, pool=True)
    facts = DeviceFacts("cuda", "a GPU", 132, (9, 0), 232448, 1 << 36, 1 << 36)
    program = make_plan(Graph(GraphInput("x", (1, 512, 14, 14)), (op,), ("y",)), facts, [(1, 512, 14, 14)]).programs[0]
    lines = str(program).splitlines()
    assert len({line.index(step.kernel.label) for line, step in zip(lines[3:], program.steps, strict=False)}) == 1
    assert all(f"{step.label} " in line for line, step in zip(lines[3:], program.steps, strict=False))
    assert "group sums" in str(program)
