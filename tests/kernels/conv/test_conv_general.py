"""kernels/conv/conv_general.cu against a direct convolution in float64 numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
import pytest

from tests.support.closeness import assert_close, rms
from tests.support.general_harness import NO_PLACES, NOWHERE, check_all_layouts, compute
from tests.support.kernel_harness import ROUNDING, assert_same_bits, normal, seeded
from vgg16gpu.checks.accuracy import FLOAT32_EPSILON, tolerance
from vgg16gpu.compiler.graph.ops import Array, GeneralConv, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.conv import conv_general
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Layout, TensorDesc

PLAIN, NHWC = Layout.PLAIN, Layout.NHWC
LAYOUTS = tuple(product((PLAIN, NHWC), repeat=2))  # of x and y


@dataclass(frozen=True)
class Case:
    """A convolution by its shapes."""

    x: Shape
    filters: int
    window: Window = field(default_factory=lambda: Window((3, 3), pads=Pads(1, 1, 1, 1)))
    group: int = 1
    bias: bool = True
    relu: bool = True

    def make(self) -> tuple[GeneralConv, tuple[Array, ...]]:
        """The op and its operands."""
        random = seeded(str(self))
        x, weight = normal(random, *self.x), normal(random, self.filters, self.x[1] // self.group, *self.window.kernel)
        operands = (x, weight, normal(random, self.filters)) if self.bias else (x, weight)
        others = ("w", "b")[: len(operands) - 1]
        return GeneralConv("x", "y", ("y",), others, self.window, self.group, self.relu), operands


def reference(op: GeneralConv, x: Array, weight: Array, bias: Array | None = None) -> np.ndarray:
    """Every tap of every group by itself."""
    window, (batch, _, height, width) = op.window, x.shape
    (SH, SW), (DH, DW), (KH, KW) = window.strides, window.dilations, window.kernel
    OH, OW = window.output_size(height, width)
    top, left, bottom, right = window.padding(height, width)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    inputs = np.split(padded, op.group, axis=1)
    filters = np.split(weight.astype(np.float64), op.group)
    y = np.zeros((batch, len(weight), OH, OW))
    for out, inp, taps in zip(np.split(y, op.group, axis=1), inputs, filters, strict=True):
        for kh, kw in product(range(KH), range(KW)):
            rows = slice(kh * DH, kh * DH + (OH - 1) * SH + 1, SH)
            columns = slice(kw * DW, kw * DW + (OW - 1) * SW + 1, SW)
            out[:] = out + np.einsum("nchw,oc->nohw", inp[:, :, rows, columns], taps[:, :, kh, kw])
    y += 0 if bias is None else bias.astype(np.float64)[:, None, None]
    return np.maximum(y, 0) if op.relu else y


def run(device: Device, op: GeneralConv, x: Sequence[Array], layouts: Sequence[Layout] = (PLAIN, PLAIN)) -> Array:
    """y for x and y in these layouts."""
    inp, out = layouts
    return compute(device, op, x, (inp, *(PLAIN,) * (len(x) - 1), out))


def check(device: Device, case: Case, layouts: Sequence[Layout] = (PLAIN, PLAIN)) -> Array:
    op, x = case.make()
    y = run(device, op, x, layouts)
    bias = FLOAT32_EPSILON * rms(x[2]) if case.bias else 0.0
    atol = tolerance(x[1][0].size, rms(x[0]), rms(x[1])) + bias
    assert_close(y, reference(op, *x), atol, ROUNDING, str(case))
    return y


def random_case(number: int) -> Case:
    random = np.random.default_rng(number)

    def two(low: int, high: int) -> tuple[int, int]:
        first, second = random.integers(low, high + 1, 2)
        return int(first), int(second)

    kernel, strides, dilations = two(1, 7), two(1, 3), two(1, 3)
    pads = Pads(*two(0, 3), *two(0, 3))
    same: Literal["", "upper", "lower"] = ("", "", "upper", "lower")[int(random.integers(4))]
    window = Window(kernel, strides, pads, dilations, same)
    smallest = max(window.extent)
    (height, width), (batch, per_group) = two(smallest, smallest + 9), two(1, 3)
    channels = int(random.integers(1, 8))
    group = (1, 2, channels)[number % 3]
    channels = channels * 2 if group == 2 else channels
    has_bias, relu = (bool(flag) for flag in random.random(2) < 0.5)
    return Case((batch, channels, height, width), per_group * group, window, group, has_bias, relu)


@pytest.mark.parametrize("number", range(96))
def test_random_shapes(device: Device, number: int) -> None:
    check(device, random_case(number), LAYOUTS[number // 3 % 4])


ALL_LAYOUTS = (
    Case((2, 5, 6, 9), 7),
    Case((2, 6, 6, 9), 4, Window((3, 2), (2, 1), Pads(0, 1, 2, 3), (1, 2)), group=2),
    Case((2, 5, 7, 6), 10, Window((5, 5), same="lower"), group=5, bias=False, relu=False),
    Case((1, 3, 1, 1), 1, Window((1, 1))),
)


@pytest.mark.parametrize("case", ALL_LAYOUTS, ids=str)
def test_layouts_do_not_change_the_bits(device: Device, case: Case) -> None:
    """Nor do those of weights that another op has computed."""
    check_all_layouts(device, *case.make(), check(device, case))


@pytest.mark.parametrize("kernel", [(1, 300), (300, 1), (17, 18), (288, 2), (2, 144), (2, 145), (12, 24)])
def test_reduction_lengths(device: Device, kernel: tuple[int, int]) -> None:
    check(device, Case((1, 3, kernel[0] + 1, kernel[1] + 1), 2, Window(kernel)))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (7, 1), (32, 32)])
def test_sums_stay_exact_in_long_reductions(device: Device, kernel: tuple[int, int]) -> None:
    """One chain of additions would be off by 2e-4."""
    channels = 25600 // (kernel[0] * kernel[1])
    x, weight = (np.full((1, channels, *kernel), 0.1, np.float32) for _ in range(2))
    op = GeneralConv("x", "y", ("y",), ("w",), Window(kernel))
    np.testing.assert_allclose(run(device, op, (x, weight)), reference(op, x, weight), rtol=1e-6)


def test_an_image_has_the_same_bits_in_any_batch_and_position(device: Device) -> None:
    op, (x, *weights) = Case((5, 20, 7, 7), 12, group=4).make()
    together = run(device, op, (x, *weights), (NHWC, NHWC))
    for image, expected in zip(x, together, strict=True):
        assert_same_bits(run(device, op, (image[None], *weights), (NHWC, NHWC))[0], expected)


@pytest.mark.parametrize("layout", [PLAIN, NHWC])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_where_it_belongs(device: Device, bad: float, layout: Layout) -> None:
    """In the windows of its group; ReLU keeps NaN, padding channels stay zero."""
    op, (x, *weights) = Case((3, 6, 8, 8), 6, group=2).make()
    clean = run(device, op, (x, *weights), (layout, layout))
    x[1, 4, 3, 4] = bad
    y = run(device, op, (x, *weights), (layout, layout))
    reached = np.zeros(y.shape, np.bool_)
    reached[1, 3:, 2:5, 3:6] = True
    assert_same_bits(y[~reached], clean[~reached])
    if np.isnan(bad):
        assert np.isnan(y[reached]).all()
    else:
        assert np.isinf(y[reached]).any()


def test_work_is_counted(device: Device) -> None:
    op, x = Case((2, 6, 5, 5), 4, Window((3, 2)), group=2).make()
    operands = tuple(TensorDesc("x", array.shape, PLAIN, NOWHERE) for array in x)
    y = TensorDesc("y", op.shape_of_y(*(array.shape for array in x)), PLAIN, NOWHERE)
    (step,) = conv_general.OP_KERNEL.steps(OpContext(op, operands[0].shape, device.facts), operands, y, (), NO_PLACES)
    assert step.kernel.source == "conv_general.cu"
    assert step.flop == 2 * (2 * 4 * 3 * 4) * 3 * 3 * 2
    assert step.nbytes == 4 * (2 * 6 * 5 * 5 + 4 * 3 * 3 * 2 + 4 + 2 * 4 * 3 * 4)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", [PLAIN, NHWC])
def test_small_shapes(device: Device, layout: Layout) -> None:
    check(device, Case((2, 6, 7, 9), 10, Window((3, 2), (2, 1), Pads(1, 0, 2, 1), (2, 1)), group=2), (layout, layout))
