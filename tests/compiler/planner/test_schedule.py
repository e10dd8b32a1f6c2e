"""A program of a path: control words, entries, what is watched, scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiler.planner.test_selection import HOPPER, conv, gemm, graph_of
from tests.support.kernel_signatures import arguments
from tests.support.random_graphs import HALF, zeros
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import BatchNorm, Op, Pool, Softmax
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.schedule import LOWEST_OF_PAIRS
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Arena, Pointer


def plan_of(graph: Graph, precision: str = "fp16", batches: Sequence[int] = (2,), **options: object) -> CompiledModel:
    channels = graph.input.shape[1] or 1
    normalisation = Normalisation((0.5,) * channels, (0.25,) * channels)
    chosen = PlanOptions(precision, normalisation=normalisation, samples=lambda: zeros(3, channels, 8, 8), **options)  # type: ignore[arg-type]
    return make_plan(graph, HOPPER, [(batch, channels, 8, 8) for batch in batches], chosen)


def program_of(graph: Graph, precision: str = "fp16", batch: int = 2) -> LaunchPlan:
    return plan_of(graph, precision, (batch,)).programs[0]


def vgg() -> Graph:
    return graph_of(
        conv("x", "a", 3, 20),
        conv("a", "b", 20, 70, pool=True),
        gemm("b", "c", 70 * 16, 100, flattens=True),
        gemm("c", "d", 100, 10),
        Softmax("d", "e", ("e",)),
    )


def between(op: Op) -> Graph:
    """A net with `op`, b from a, between two convolutions."""
    return graph_of(conv("x", "a", 3, 20), op, conv("b", "c", 20, 70))


POOL = Pool("a", "b", ("b",), "average", HALF)
NORM = BatchNorm("a", "b", ("b",), zeros(20), zeros(20), zeros(20), np.ones(20, np.float32), 1e-5)


# ---- What is watched


def magnitudes(program: LaunchPlan) -> dict[str, list[Pointer]]:
    """Where the steps that compute or convert a value note its largest magnitudes."""
    found: dict[str, list[Pointer]] = {}
    for step in program.all_steps():
        given = arguments(step)
        if "maxima" in given:
            assert given.get("maxima_stride", 1) == 1
            found.setdefault(step.names[-1], []).append(given["maxima"])
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_each_stored_value_has_a_word_for_every_image(precision: str, batch: int) -> None:
    program = program_of(between(POOL), precision, batch)
    control = program.control
    assert control.watched == ("a", "b", "c")  # b only as it is converted
    assert control.lowest == (LOWEST_OF_PAIRS if precision == "fp32" else 0)
    assert control.returned_words == 1 + 4 * batch
    found = magnitudes(program)
    for index, name in enumerate(control.watched):
        first = control.error.offset + 4 * (1 + batch * (1 + index))
        assert control.maxima(index).offset == first
        assert control.maxima(index) in found[name]
        assert {*found[name]} <= {control.maxima(index), control.error}
    assert control.end == control.error.offset + 4 * (1 + 4 * batch)


# ---- Entries


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_the_input_ends_where_the_control_words_begin(batch: int) -> None:
    """One copy brings both."""
    program = program_of(vgg(), batch=batch)
    sizes = {"float32": 4 * batch * 192, "uint8": batch * 192}
    for element_type, nbytes in sizes.items():
        entry = program.input.entries[element_type]
        assert entry.nbytes == nbytes
        assert entry.pointer.offset % 256 == 0
        assert 0 <= program.control.counters.offset - entry.pointer.offset - nbytes < 256
        (first,) = entry.steps
        given = arguments(first)
        assert given["source"] == entry.pointer
        assert given["status"] == program.control.status
        assert dict(first.kernel.defines)["SOURCE"] == (element_type == "uint8")
    floats, pixels = (program.input.entries[name].steps[0] for name in sizes)
    assert arguments(floats)["out"] == arguments(pixels)["out"]


# ---- float32 from pairs: calibration and second pass


def test_scales_are_fixed_on_the_exact_path() -> None:
    plan = plan_of(between(POOL), "fp32", (1, 4))
    calibration, second = plan.calibration, plan.second_pass
    assert calibration is not None
    assert second is not None
    assert len(calibration.samples) == 3
    for program in (calibration.program, second):
        assert program.batch == 1
        assert {step.kernel.source for step in program.steps} <= {"conv_igemm.cu", "pool.cu", "layout.cu", "scales.cu"}
        assert program.control.watched == ()
        assert program.control.lowest == 0
        assert [output.name for output in program.outputs] == ["c"]
    assert observed(calibration.program) == ["x", "a", "b", "c"]
    assert observed(second) == []
    assert {*second.input.entries} == {*plan.programs[0].input.entries} == {"float32", "uint8"}
    assert [program.batch for program in plan.programs] == [1, 4]
    assert plan.all_programs == (*plan.programs, second, calibration.program)
    assert {step.kernel for step in calibration.finish} <= plan.kernels


def test_a_second_pass_of_every_batch_size_follows_runs_that_nobody_waits_for() -> None:
    plan = plan_of(between(POOL), "fp32", (1, 4))
    assert plan.second_pass is not None
    assert [program.batch for program in plan.second_passes] == [1, 4]
    single, _ = plan.second_passes
    assert single.steps == plan.second_pass.steps
    for fast, exact in zip(plan.programs, plan.second_passes, strict=True):
        assert {step.kernel.source for step in exact.steps} <= {"conv_igemm.cu", "pool.cu", "layout.cu"}
        assert exact.control.watched == ()
        assert [y.shape for y in exact.outputs] == [y.shape for y in fast.outputs]
        assert {*exact.input.entries} == {*fast.input.entries}
    ends = [program.activations_nbytes for program in (*plan.all_programs, *plan.second_passes)]
    assert max(ends) <= plan.guard.offset < max(ends) + 256
    assert plan.activations_nbytes == plan.guard.offset + 4 * (1 + 4)


def observed(program: LaunchPlan) -> list[str]:
    """The values whose magnitudes are noted, in the order in which they are computed."""
    steps = [step for step in program.all_steps() if step.kernel.name == "observe_f32"]
    return [step.label.removeprefix("largest magnitudes of ") for step in steps]


@pytest.mark.parametrize("graph", [vgg(), between(POOL), between(NORM)], ids=["vgg", "pool", "norm"])
def test_scales_are_known_before_they_are_used(graph: Graph) -> None:
    plan = plan_of(graph, "fp32")
    assert plan.calibration is not None
    known: set[Pointer] = set()
    for step in plan.calibration.finish:
        used, made = scales_of(step)
        assert used <= known, step.label
        assert not made & known, step.label
        known |= made
    used = {pointer for program in plan.programs for step in program.all_steps() for pointer in scales_of(step)[0]}
    unscaled = {upload.target for upload in plan.weights.uploads if upload.array.any()}
    assert {pointer for pointer in used if pointer.arena is Arena.WEIGHTS} <= known | unscaled


def scales_of(step: KernelLaunch) -> tuple[set[Pointer], set[Pointer]]:
    """The vectors of scales that a step reads, and those that it makes."""
    given = arguments(step)
    match step.kernel.name:
        case "choose_scale_f32":
            return set(), {given["scale"]}
        case "row_scale_f32":
            return {given["inp_scale"]}, {given["scale"], given["dequant"], given["plain"]}
        case "pack_blocks":
            return {given["row_scale"], given["inp_scale"]}, {given["out"]}
    return {given[name] for name in ("in_scale", "out_scale", "dequant", "row_scale") if name in given}, set()


def test_without_samples_there_are_no_scales() -> None:
    with pytest.raises(ModelError, match="fixes its scales on typical inputs; give some, or ask for kernels 'ffma'"):
        make_plan(vgg(), HOPPER, [(1, 3, 8, 8)])
