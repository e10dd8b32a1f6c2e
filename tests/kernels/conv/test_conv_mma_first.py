"""conv_mma_first.cu against float64 on any device, and its bits: both sources, every number of channels, edges."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, seeded
from tests.support.mma_harness import STORED, MmaTrial
from tests.support.wgmma_harness import ConvCase, check, parameters, raw, resident, step_of, value_of
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.conv import conv_mma_first
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.quantization.scheme import Scale
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType
from vgg16gpu.runtime.outputs import LARGEST_FLOAT16

PRECISIONS = ("fp16", "bf16")
CARD = DeviceFacts("cuda", "a card", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)
PROCESSOR = DeviceFacts("cpu", "a processor", 8, (0, 0), 227 << 10, 80 << 30, 80 << 30)

SHAPES = (
    ConvCase("", (2, 3, 20, 30), 64),
    ConvCase("", (1, 3, 17, 67), 70, relu=False),  # three strips, two tiles of channels
    ConvCase("", (2, 4, 7, 16), 5),
    ConvCase("", (1, 2, 9, 33), 64, bias=False, relu=False),
    ConvCase("", (3, 1, 3, 2), 7),
)
CASES = (
    *(replace(case, precision=precision) for precision in PRECISIONS for case in SHAPES),
    *(replace(case, precision="fp16", pixels=True) for case in SHAPES[:3]),
    replace(SHAPES[4], precision="bf16", pixels=True),
)
INTEGERS = (
    *(replace(case, precision="int8") for case in SHAPES),
    *(replace(case, precision="int8", pixels=True) for case in SHAPES),
)
SIZES = (*((size, 10 - size) for size in range(1, 10)), (1, 1), (9, 9), (15, 32), (1, 65))
SMALL = (
    ConvCase("fp16", (2, 3, 5, 19), 20, relu=False, pixels=True),
    ConvCase("bf16", (1, 3, 3, 9), 70),
    ConvCase("int8", (2, 3, 5, 19), 20),
    ConvCase("int8", (1, 3, 3, 9), 70, relu=False, pixels=True),
)


def trial_of(case: ConvCase) -> MmaTrial:
    """The graph and its input, for the kernel on any device."""
    made = case.trial()
    return MmaTrial(made.graph, made.x, made.precision, first_on=("cuda", "cpu"))


def check_case(device: Device, case: ConvCase) -> Result:
    """Judge a case, once its convolution has been found to be the only launch that sees the input."""
    result = check(device, trial_of(case))
    steps = result.program.input.entries["uint8" if case.pixels else "float32"].steps
    assert [step.kernel.name for step in steps] == ["conv_mma_first"]
    signed = case.precision == "int8" and not case.relu
    assert value_of(result.program, "y").element is (DType.S8 if signed else STORED[case.precision])
    return result


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_and_sources(device: Device, case: ConvCase) -> None:
    check_case(device, case)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_sizes(device: Device, size: tuple[int, int]) -> None:
    check_case(device, ConvCase("fp16", (2, 3, *size), 8))


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SMALL))
def test_small_shapes(device: Device, case: ConvCase) -> None:
    check_case(device, case)


# ---- Integers: exact, so the bits are those of conv_mma


def check_integers(device: Device, trial: MmaTrial, entry: str = "float32") -> Result:
    """Judge a trial, and hold what it stores and gives against a plan with conv_mma in the kernel's place."""
    found, other = check(device, trial), check(device, replace(trial, first_on=()))
    compare(found, other, entry)
    return found


def compare(found: Result, other: Result, entry: str) -> None:
    """Hold a result of the kernel against one of conv_mma."""
    first, second = (step_of(result.program, "y", entry) for result in (found, other))
    assert [first.kernel.name, second.kernel.name] == ["conv_mma_first", "conv_mma"]
    assert value_of(found.program, "y").element is value_of(other.program, "y").element
    np.testing.assert_array_equal(raw(found, "y"), raw(other, "y"))
    assert_same_bits(found.outputs[0], other.outputs[0])


@pytest.mark.parametrize("case", parameters(INTEGERS))
def test_integers_are_those_of_conv_mma(device: Device, case: ConvCase) -> None:
    check_case(device, case)
    check_integers(device, trial_of(case), "uint8" if case.pixels else "float32")


@pytest.mark.parametrize("signed", [True, False])
def test_saturated_pixels_and_ties(device: Device, signed: bool) -> None:
    """The largest sums that there are; steps of a power of two, so that pixels lie half way between integers."""
    trial = trial_of(ConvCase("int8", (2, 4, 7, 9), 70, bias=False))
    conv, *others = trial.graph.ops
    assert isinstance(conv, Conv)
    weight = np.abs(conv.weight)
    weight[::2] = 1.0
    weight[1::4] *= -1
    graph = replace(trial.graph, ops=(replace(conv, weight=weight, relu=False), *others))
    step, most = 0.25, 127 if signed else 255
    x = (seeded("ties").integers(-600, 600, trial.x.shape) / 8).astype(np.float32)
    x[1] = step * most
    scales = {**replace(trial, graph=graph, x=x).scales, "x": Scale(step, signed)}
    x[1] *= 10
    with mock.patch.object(MmaTrial, "scales", scales):
        found = check_integers(device, replace(trial, graph=graph, x=x))
    assert np.abs(found.value("y")[1, 0, 3, 4] - 36 * most * step) <= scales["y"].step


@pytest.mark.parametrize("lowest", [-0.25, 0.0])
@pytest.mark.parametrize("pixels", [False, True])
def test_limits_of_integers(device: Device, pixels: bool, lowest: float) -> None:
    """Clip where the integers reach further than the limits; from 0 on they are unsigned bytes."""
    trial = trial_of(ConvCase("int8", (2, 3, 7, 9), 20, relu=False, pixels=pixels))
    conv, *others = trial.graph.ops
    assert isinstance(conv, Conv)
    limits = (lowest, 0.75)
    clipped = replace(trial, graph=replace(trial.graph, ops=(replace(conv, limits=limits), *others)))
    scales = {**trial.scales, "y": Scale(trial.scales["y"].step, lowest < 0)}
    with mock.patch.object(MmaTrial, "scales", scales):
        found, other = clipped.run(device), replace(clipped, first_on=()).run(device)
    entry = "uint8" if pixels else "float32"
    assert ("CLIPS", 1) in step_of(found.program, "y", entry).kernel.defines
    compare(found, other, entry)
    step = scales["y"].step
    assert found.value("y").min() == pytest.approx(limits[0], abs=step)
    assert found.value("y").max() == pytest.approx(limits[1], abs=step)


def test_integers_that_nobody_reads_are_float32(device: Device) -> None:
    """With channels behind the last that are stored: four, where a thread has eight."""
    trial = trial_of(ConvCase("int8", (2, 3, 7, 9), 20))
    graph = replace(trial.graph, ops=trial.graph.ops[:1], outputs=("y",))
    found = check_integers(device, replace(trial, graph=graph))
    assert value_of(found.program, "y").element is DType.F32


# ---- Bits


@pytest.mark.parametrize("rows", conv_mma_first.ROWS)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_any_tile_gives_the_same_bits(device: Device, rows: int, precision: str) -> None:
    case = ConvCase(precision, (1, 3, 19, 9), 64)
    with mock.patch.object(conv_mma_first, "ROWS", (rows,)):
        result = check_case(device, case)
    assert step_of(result.program, "y").shared == (rows + 2) * 1024
    assert_same_bits(result.value("y"), check_case(device, case).value("y"))


@pytest.mark.parametrize("precision", [*PRECISIONS, "int8"])
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, precision: str) -> None:
    pixels = precision == "bf16"
    check_positions(device, trial_of(ConvCase(precision, (5, 3, 7, 9), 12, pixels=pixels)))
    check_batches(device, trial_of(ConvCase(precision, (9, 3, 7, 9), 12)), 1, 5)


# ---- What is not finite, or out of range


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device, precision: str) -> None:
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True
    check_nan(device, trial_of(ConvCase(precision, (3, 3, 8, 8), 70)), reached)


def test_nan_is_reported_in_int8(device: Device) -> None:
    """The integer that it becomes is 0, so only the status word knows; its image is what it would be with 0."""
    trial = trial_of(ConvCase("int8", (3, 3, 8, 8), 70))
    check_nan(device, trial)
    x = trial.x.copy()
    x[1, 0, 3, 4] = 0.0
    with resident(device, trial) as plan:
        expected = plan.run(3, x).outputs[0]
        x[1, 0, 3, 4] = np.nan
        assert_same_bits(plan.run(3, x).outputs[0], expected)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_padding_channels_stay_zero_beside_an_infinity(device: Device, precision: str) -> None:
    """Or 0 times NaN would make the next layer NaN where ONNX says infinity."""
    trial = trial_of(ConvCase(precision, (1, 3, 8, 8), 20))
    x = trial.x.copy()
    x[0, 2, 3, 4] = np.inf
    with mock.patch.object(MmaTrial, "scales", trial.scales):
        result = replace(trial, x=x).run(device)
    result.value("y")  # looks at the padding
    assert result.nonfinite.tolist() == [True]


@pytest.mark.parametrize("size", [65520.0, -65520.0, 1e38])
def test_pixels_beyond_float16_are_reported(device: Device, size: float) -> None:
    """Tell it of their image alone, also where nothing infinite is stored: all products go to a ReLU's zero."""
    trial = trial_of(ConvCase("fp16", (3, 3, 8, 8), 9))
    conv = trial.graph.ops[0]
    assert isinstance(conv, Conv)
    conv = replace(conv, weight=-np.copysign(np.abs(conv.weight) + np.float32(0.01), np.float32(size)), relu=True)
    trial = replace(trial, graph=replace(trial.graph, ops=(conv,)))
    x = trial.x.copy()
    x[1, 2, 7, 0] = size
    x[2, 0, 0, 0] = np.copysign(LARGEST_FLOAT16, size)
    with resident(device, trial) as plan:
        found = plan.run(3, x)
    assert np.isfinite(found.outputs[0]).all()
    assert found.out_of_range.tolist() == [False, True, False]
    assert not found.nonfinite.any()


# ---- Where it is planned


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "conv_mma_first"),
        ({"pool": True}, "conv_mma"),
        ({"precision": "int8"}, "conv_mma_first"),
        ({"precision": "int8", "pool": True}, "conv_mma"),
        ({"behind_relu": True}, "conv_mma"),
        ({"shape": (1, 5, 8, 8)}, "conv_mma"),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else None,
)
def test_what_it_computes(change: dict[str, object], kernel: str) -> None:
    trial = trial_of(replace(ConvCase("fp16", (1, 3, 8, 8), 64), **change))  # type: ignore[arg-type]
    (program,) = trial.plan(CARD).programs
    assert step_of(program, "y").kernel.name == kernel


def test_plans_for_cpus_are_without_it() -> None:
    trial = trial_of(ConvCase("fp16", (1, 3, 8, 8), 64))
    (program,) = make_plan(trial.graph, PROCESSOR, [trial.x.shape], trial.options).programs
    assert step_of(program, "y").kernel.name == "conv_mma"
