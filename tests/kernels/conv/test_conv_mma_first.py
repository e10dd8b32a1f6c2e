"""conv_mma_first.cu against float64 on any device, and its bits: both sources, every number of channels, edges."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits
from tests.support.mma_harness import MmaTrial
from tests.support.wgmma_harness import ConvCase, check, parameters, resident, step_of, value_of
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.lowering.conv import conv_mma_first
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.program.device_properties import DeviceFacts
from vgg16gpu.program.values import Element
from vgg16gpu.runtime.outputs import LARGEST_FLOAT16

STORED = {"fp16": Element.F16, "bf16": Element.BF16}
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
    *(replace(case, precision=precision) for precision in STORED for case in SHAPES),
    *(replace(case, precision="fp16", pixels=True) for case in SHAPES[:3]),
    replace(SHAPES[4], precision="bf16", pixels=True),
)
SIZES = (*((size, 10 - size) for size in range(1, 10)), (1, 1), (9, 9), (15, 32), (1, 65))
SMALL = (
    ConvCase("fp16", (2, 3, 5, 19), 20, relu=False, pixels=True),
    ConvCase("bf16", (1, 3, 3, 9), 70),
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
    assert value_of(result.program, "y").element is STORED[case.precision]
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


# ---- Bits


@pytest.mark.parametrize("rows", conv_mma_first.ROWS)
def test_any_tile_gives_the_same_bits(device: Device, rows: int) -> None:
    case = ConvCase("fp16", (1, 3, 19, 9), 64)
    with mock.patch.object(conv_mma_first, "ROWS", (rows,)):
        result = check_case(device, case)
    assert step_of(result.program, "y").shared == (rows + 2) * 1024
    assert_same_bits(result.value("y"), check_case(device, case).value("y"))


@pytest.mark.parametrize("precision", STORED)
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, precision: str) -> None:
    pixels = precision == "bf16"
    check_positions(device, trial_of(ConvCase(precision, (5, 3, 7, 9), 12, pixels=pixels)))
    check_batches(device, trial_of(ConvCase(precision, (9, 3, 7, 9), 12)), 1, 5)


# ---- What is not finite, or out of range


@pytest.mark.parametrize("precision", STORED)
def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device, precision: str) -> None:
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True
    check_nan(device, trial_of(ConvCase(precision, (3, 3, 8, 8), 70)), reached)


def test_padding_channels_stay_zero_beside_an_infinity(device: Device) -> None:
    """Or 0 times NaN would make the next layer NaN where ONNX says infinity."""
    trial = trial_of(ConvCase("bf16", (1, 3, 8, 8), 20))
    x = trial.x.copy()
    x[0, 2, 3, 4] = np.inf
    result = replace(trial, x=x).run(device)
    result.value("y")  # looks at the padding
    assert result.nonfinite.tolist() == [True]


@pytest.mark.parametrize("size", [65520.0, -65520.0, 1e38])
def test_pixels_beyond_float16_are_reported(device: Device, size: float) -> None:
    """Of their image alone, also where nothing infinite is stored: all of their products go to a ReLU's zero."""
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
        ({"precision": "int8"}, "conv_mma"),
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
