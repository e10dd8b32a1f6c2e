"""kernels/gemm/gemm_direct.cu against float64 numpy, and its bits: those of gemm_splitk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gemm.test_gemm_splitk import LENGTHS, make
from tests.support.kernel_harness import FFMA, assert_same_bits, check_op, one_op, run_op
from vgg16gpu.compiler.graph.ops import Array, Gemm, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.facts import H200
from vgg16gpu.program.types import DeviceFacts

CPU = replace(H200, kind="cpu", compute_capability=(0, 0))


def check(device: Device, op: Gemm, x: Array, *, inner: bool = False) -> None:
    """Right, and to the bit what gemm_splitk gives."""
    y = check_op(device, op, x, inner=inner, of="cpu")
    assert_same_bits(run_op(device, op, x, inner=inner, of="cuda"), y)


@pytest.mark.parametrize("length", LENGTHS)
def test_reduction_lengths(device: Device, length: int) -> None:
    check(device, *make((2, length), 7))


@pytest.mark.parametrize("outputs", [1, 3, 4, 5, 10, 31])
@pytest.mark.parametrize("batch", [2, 7])
def test_numbers_of_outputs(device: Device, batch: int, outputs: int) -> None:
    check(device, *make((batch, 36), outputs, relu=outputs % 2 == 0, bias=outputs != 5), inner=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(1, 20), (2, 6), (3, 1030), (5, 7), (2, 3, 3, 3)], ids=str)
def test_small_shapes(device: Device, shape: Shape) -> None:
    check_op(device, *make(shape, 5, relu=True), inner=True, of="cpu")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_image(device: Device, bad: float) -> None:
    op, x = make((6, 40), 6, relu=True)
    clean = run_op(device, op, x, of="cpu")
    x[1, 17] = bad
    y = run_op(device, op, x, inner=True, of="cpu")
    others = np.arange(6) != 1
    assert_same_bits(y[others], clean[others])
    right = np.full(6, np.nan) if np.isnan(bad) else np.where(op.weight[:, 17] > 0, np.inf, 0)
    np.testing.assert_array_equal(y[1], right)


def planned(facts: DeviceFacts) -> str:
    op, x = make((3, 64), 7)
    program = make_plan(one_op(op, x.shape), facts, [x.shape], FFMA).programs[0]
    return next(step.kernel.name for step in program.steps if step.flop)


def test_on_a_cpu_alone() -> None:
    assert planned(CPU) == "gemm_direct_f32"
    assert planned(H200) == planned(replace(CPU, kind="cuda")) == "gemm_splitk_f32"
