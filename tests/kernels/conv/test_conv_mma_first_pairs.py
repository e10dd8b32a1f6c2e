"""conv_mma_first_pairs.cu against float64 on any device, and its bits: both sources, all numbers of channels, edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import reference
from tests.support.judged_bits import check_batches, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, seeded
from tests.support.mma_harness import MmaTrial
from tests.support.wgmma_harness import ConvCase, check, convolution, parameters, resident, step_of, value_of
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType

CARD = DeviceFacts("cuda", "a card", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)
FINEST = 1.2e-7  # norm-wise; tensor cores cut, the CPU's stand-in does not and gives 0.8e-7
SHAPES = (
    ConvCase("fp32", (2, 3, 20, 30), 64),
    ConvCase("fp32", (1, 3, 17, 67), 70, relu=False),  # five strips, two tiles of channels
    ConvCase("fp32", (2, 4, 7, 16), 9),
    ConvCase("fp32", (1, 2, 9, 33), 64, bias=False, relu=False),
    ConvCase("fp32", (3, 1, 3, 2), 65),
)
CASES = (*SHAPES, *(replace(case, pixels=True) for case in SHAPES))
SIZES = (*((size, 10 - size) for size in range(1, 10)), (1, 1), (9, 9), (15, 32), (1, 65))
SMALL = (ConvCase("fp32", (2, 3, 5, 19), 20, pixels=True), ConvCase("fp32", (1, 3, 3, 9), 70, relu=False))


def trial_of(case: ConvCase) -> MmaTrial:
    """The graph and its input, for the kernel on any device."""
    made = case.trial()
    return MmaTrial(made.graph, made.x, made.precision, first_on=("cuda", "cpu"))


def check_case(device: Device, case: ConvCase) -> Result:
    """Judge a case, once its convolution has been found to be the only launch that sees the input."""
    trial = trial_of(case)
    result = check(device, trial)
    steps = result.program.input.entries["uint8" if case.pixels else "float32"].steps
    assert [step.kernel.name for step in steps] == ["conv_mma_first_pairs"]
    assert value_of(result.program, "y").element is DType.F16_PAIR
    (conv,) = trial.graph.ops
    assert isinstance(conv, Conv)
    assert layer_error(result.value("y"), reference.apply(conv, trial.floats.astype(np.float64))) <= FINEST
    return result


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_and_sources(device: Device, case: ConvCase) -> None:
    check_case(device, case)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_sizes(device: Device, size: tuple[int, int]) -> None:
    check_case(device, ConvCase("fp32", (2, 3, *size), 9))


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SMALL))
def test_small_shapes(device: Device, case: ConvCase) -> None:
    check_case(device, case)


def followed(case: ConvCase) -> MmaTrial:
    """The trial with a second convolution, which reads pairs."""
    trial = trial_of(case)
    more = convolution(seeded("more"), "y", "z", case.filters, 64)
    return replace(trial, graph=Graph(trial.graph.input, (*trial.graph.ops, more), ("z",)))


def test_a_second_convolution_reads_its_pairs(device: Device) -> None:
    result = check(device, followed(SHAPES[0]))
    assert step_of(result.program, "z").kernel.name == "conv_mma_3x3"
    assert step_of(result.program, "y").kernel.name == "conv_mma_first_pairs"


def test_limits_of_pixels_and_outputs(device: Device) -> None:
    """A Clip in place of the ReLU has the values that a plain one has, clipped."""
    trial = trial_of(replace(SHAPES[0], relu=False))
    (conv,) = trial.graph.ops
    assert isinstance(conv, Conv)
    clipped = replace(trial, graph=replace(trial.graph, ops=(replace(conv, limits=(-0.25, 0.5)),))).run(device)
    assert ("CLIPS", 1) in step_of(clipped.program, "y").kernel.defines
    plain = np.clip(trial.run(device).value("y"), np.float32(-0.25), np.float32(0.5))
    np.testing.assert_allclose(clipped.value("y"), plain, rtol=0, atol=2.0**-23)


# ---- Bits


@pytest.mark.parametrize("pixels", [False, True])
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, pixels: bool) -> None:
    check_positions(device, trial_of(ConvCase("fp32", (5, 3, 9, 11), 70, pixels=pixels)))
    check_batches(device, trial_of(ConvCase("fp32", (9, 3, 9, 11), 70, pixels=pixels)), 1, 4)


# ---- What is not finite, or out of range


@pytest.mark.parametrize(("value", "is_finite"), [(np.nan, False), (np.inf, False), (3e38, True), (1e9, True)])
def test_pixels_out_of_range_are_computed_on_ffma(device: Device, value: float, is_finite: bool) -> None:
    trial = followed(ConvCase("fp32", (3, 3, 8, 9), 64))
    x = trial.x.copy()
    x[1, 0, 3, 4] = value
    with resident(device, trial) as plan:
        clean = plan.run(3, trial.x).outputs[0]
        (y,), nonfinite, _ = plan.run(3, x)
        assert plan.second_passes == 1
    assert nonfinite.tolist() == [False, not is_finite, False]
    assert_same_bits(y[[0, 2]], clean[[0, 2]])
    with resident(device, replace(trial, kernels="ffma")) as plan:
        np.testing.assert_array_equal(y[1], plan.run(3, x).outputs[0][1])


def test_it_computes_no_image_that_another_op_reads_and_no_pool() -> None:
    """conv_igemm does, and its results are converted."""
    for case in (replace(SHAPES[0], pool=True), replace(SHAPES[0], shape=(2, 5, 20, 30))):
        trial = followed(case)
        plan = make_plan(trial.graph, CARD, [case.shape], trial.options)
        assert plan.families == {"y": "ffma", "z": "mma"}
