"""kernels/general/matmul.cu against numpy.matmul in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.closeness import assert_close, rms
from tests.support.general_harness import NO_PLACES, NOWHERE, check_all_layouts, compute, layouts_of
from tests.support.kernel_harness import ROUNDING, assert_same_bits, normal, seeded
from vgg16gpu.checks.accuracy import tolerance
from vgg16gpu.compiler.graph.ops import Array, MatMul, Shape
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.general import matmul
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Layout, TensorDesc

PLAIN, NHWC = Layout.PLAIN, Layout.NHWC


@dataclass(frozen=True)
class Case:
    """A product by the shapes of its operands."""

    a: Shape
    b: Shape
    c: Shape | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0

    def make(self) -> tuple[MatMul, tuple[Array, ...]]:
        """The op and its operands."""
        random = seeded(str(self))
        x = tuple(normal(random, *shape) for shape in (self.a, self.b, self.c) if shape is not None)
        others = ("b", "c")[: len(x) - 1]
        op = MatMul("a", "y", ("y",), others, self.transpose_a, self.transpose_b, self.alpha, self.beta)
        return op, x


def reference(op: MatMul, a: Array, b: Array, c: Array | None = None) -> np.ndarray:
    left, right = (np.asarray(operand, np.float64) for operand in (a, b))
    left = left.swapaxes(-1, -2) if op.transpose_a else left
    right = right.swapaxes(-1, -2) if op.transpose_b else right
    y = op.alpha * np.matmul(left, right)
    return np.asarray(y if c is None else y + op.beta * np.asarray(c, np.float64))


def check(device: Device, case: Case, layouts: Sequence[Layout] | None = None) -> Array:
    op, x = case.make()
    y = compute(device, op, x, layouts or (PLAIN,) * (len(x) + 1))
    length = x[0].shape[-2 if op.transpose_a else -1]
    added = abs(op.beta) * tolerance(1, rms(x[2])) if len(x) > 2 else 0.0
    atol = abs(op.alpha) * tolerance(length, rms(x[0]), rms(x[1])) + added
    assert_close(y, reference(op, *x), atol, ROUNDING, str(case))
    return y


def random_case(number: int) -> Case:
    """Any ranks that fit each other, with dimensions that are broadcast here and there."""
    random = np.random.default_rng(number)
    m, n, k = (int(random.integers(1, 70)) for _ in range(3))
    batch = tuple(int(dim) for dim in random.integers(1, 4, random.integers(0, 4)))
    a_vector, b_vector = random.random(2) < 0.15
    case_a, case_b = not a_vector and random.random() < 0.4, not b_vector and random.random() < 0.4
    a = (k,) if a_vector else (*repeated(random, batch), *((k, m) if case_a else (m, k)))
    b = (k,) if b_vector else (*repeated(random, batch), *((n, k) if case_b else (k, n)))
    op = MatMul("a", "y", ("y",), ("b",), case_a, case_b)
    c = repeated(random, op.shape_of_y(a, b)) if random.random() < 0.5 else None
    return Case(a, b, c, case_a, case_b, *(float(random.choice((1.0, 0.5, -2.0))) for _ in range(2)))


def repeated(random: np.random.Generator, shape: Shape) -> Shape:
    """A shape that is broadcast to this one."""
    dims = tuple(1 if random.random() < 0.3 else dim for dim in shape)
    return dims[int(random.integers(0, len(shape) + 1)) if random.random() < 0.3 else 0 :]


@pytest.mark.parametrize("number", range(80))
def test_random_shapes(device: Device, number: int) -> None:
    case = random_case(number)
    op, x = case.make()
    y = op.shape_of_y(*(array.shape for array in x))
    choices = [*layouts_of(*(array.shape for array in x), y)]
    check(device, case, choices[np.random.default_rng(number).integers(len(choices))])


@pytest.mark.parametrize("m", [1, 31, 32, 33])
@pytest.mark.parametrize("n", [1, 4, 31, 32, 33, 65])
@pytest.mark.parametrize("k", [1, 31, 32, 33])
def test_edges_of_the_tile(device: Device, m: int, n: int, k: int) -> None:
    check(device, Case((m, k), (k, n)))


EVERY_LAYOUT = (
    Case((3, 5), (5, 7), (7,)),
    Case((3, 5), (5, 37), (3, 1), alpha=0.5, beta=-2.0),
    Case((2, 3, 6, 5), (2, 3, 5, 7), (2, 3, 6, 7)),
    Case((2, 3, 5, 6), (3, 7, 5), (6, 1), transpose_a=True, transpose_b=True),
    Case((2, 1, 40, 5), (3, 5, 7)),
    Case((5,), (3, 5, 7)),  # y is (3, 7)
    Case((3, 6, 5), (5,)),  # y is (3, 6)
    Case((2, 3, 6, 4, 5), (5,)),  # y is (2, 3, 6, 4)
)


@pytest.mark.parametrize("case", EVERY_LAYOUT, ids=str)
def test_layouts_do_not_change_the_bits(device: Device, case: Case) -> None:
    check_all_layouts(device, *case.make(), check(device, case))


def test_eight_dimensions(device: Device) -> None:
    check(device, Case((2, 1, 3, 1, 2, 1, 4, 5), (3, 1, 2, 2, 2, 5, 3), (2, 1, 1, 1, 1, 1, 4, 1)))
    check(device, Case((2, 2, 1, 1, 2, 2, 4, 5), (5,)))


def test_products_of_nothing_are_zero(device: Device) -> None:
    check(device, Case((3, 0), (0, 5)))
    check(device, Case((3, 0), (0, 5), (5,), beta=2.0))


@pytest.mark.parametrize("k", [287, 288, 289, 576, 577, 5000])
def test_reduction_lengths(device: Device, k: int) -> None:
    check(device, Case((3, k), (k, 5)))


def test_sums_stay_exact_in_long_reductions(device: Device) -> None:
    """One chain of additions would be off by 2e-4."""
    a, b = (np.full(shape, 0.1, np.float32) for shape in ((1, 25088), (25088, 1)))
    op = MatMul("a", "y", ("y",), ("b",))
    y = compute(device, op, (a, b), (PLAIN,) * 3)
    np.testing.assert_allclose(y, reference(op, a, b), rtol=1e-6)


def test_a_matrix_has_the_same_bits_in_any_batch_and_position(device: Device) -> None:
    op, (a, b) = Case((5, 33, 300), (300, 7)).make()
    together = compute(device, op, (a, b), (PLAIN,) * 3)
    for matrix, expected in zip(a, together, strict=True):
        assert_same_bits(compute(device, op, (matrix, b), (PLAIN,) * 3), expected)
        assert_same_bits(compute(device, op, (matrix[4:9], b), (PLAIN,) * 3), expected[4:9])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_what_is_not_finite_stays_in_its_row_and_column(device: Device, batch: Shape, bad: float) -> None:
    """Padding, too, stays zero beside it."""
    op, (a, b) = Case((*batch, 33, 40), (*batch, 40, 7)).make()
    clean = compute(device, op, (a, b), (NHWC,) * 3)
    first, last = ((0,) * len(batch), (-1,) * len(batch))
    a[(*last, 32, 39)] = b[(*first, 39, 6)] = bad
    y = compute(device, op, (a, b), (NHWC,) * 3)
    reached = np.zeros(y.shape, np.bool_)
    reached[(*last, 32)] = True
    reached[(*first, slice(None), 6)] = True
    assert not np.isfinite(y[reached]).any()
    assert_same_bits(y[~reached], clean[~reached])


def test_work_is_counted(device: Device) -> None:
    """Of real elements alone; repeated operands are read once."""
    op, x = Case((2, 1, 6, 5), (3, 5, 7), (7,)).make()
    operands = tuple(TensorDesc("x", array.shape, PLAIN, NOWHERE) for array in x)
    layer = OpContext(op, operands[0].shape, device.facts)
    (step,) = matmul.OP_KERNEL.steps(layer, operands, TensorDesc("y", (2, 3, 6, 7), NHWC, NOWHERE), (), NO_PLACES)
    assert step.kernel.source == "matmul.cu"
    assert step.flop == 2 * math.prod((2, 3, 6, 7)) * 5
    assert step.nbytes == 4 * (2 * 6 * 5 + 3 * 5 * 7 + 7 + 2 * 4 * 6 * 7)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", [PLAIN, NHWC])
def test_small_shapes(device: Device, layout: Layout) -> None:
    check(device, Case((2, 3, 33, 37), (3, 37, 5), (33, 1)), (layout, PLAIN, PLAIN, layout))
