"""kernels/general/elementwise.cu against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import pytest

from tests.support.closeness import assert_close
from tests.support.general_harness import check_all_layouts, compute
from tests.support.kernel_harness import assert_same_bits, check_op, normal, run_op, seeded
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    Array,
    BatchNorm,
    Clip,
    ClipGradient,
    Elementwise,
    FakeQuantize,
    GeneralBatchNorm,
    LeakyRelu,
    Relu,
    ReluGradient,
    Shape,
)
from vgg16gpu.compiler.op_kernels.general.elementwise import elementwise_step, relu_step
from vgg16gpu.compiler.op_kernels.strided import View
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Layout, Pointer, TensorDesc

RELU = Relu("x", "y", ("y",))
MAPS: tuple[Shape, ...] = ((1, 1, 1, 1), (1, 3, 5, 5), (2, 4, 7, 3), (5, 6, 4, 4), (1, 130, 3, 3), (2, 8, 16, 17))
SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (300,), (3, 5), (2, 8), (2, 3, 4), (2, 5, 3, 3), (2, 4, 2, 8))
DEEP_SHAPES: tuple[Shape, ...] = ((2, 1, 3, 2, 5), (1, 2, 3, 1, 2, 4), (2, 1, 1, 2, 1, 2, 1, 3))
BROADCASTS: tuple[tuple[Shape, ...], ...] = (
    ((2, 5, 3, 3), (5, 1, 1)),
    ((2, 8, 3, 4), (2, 8, 1, 1)),
    ((2, 5, 3, 4), ()),
    ((1, 5, 1, 4), (3, 1, 2, 1)),
    ((2, 1, 3, 3), (2, 5, 3, 3)),
    ((5,), (3, 5)),
    ((3, 8), (2, 1, 8)),
    ((2, 3), (4, 1, 2, 3)),
    ((4, 1, 2), (5, 1, 3, 1)),
    ((1, 2, 1, 2, 1, 2), (2, 1, 2, 1)),
)


def elementwise(
    function: str, numbers: tuple[float, ...] = (), *, operands: int = 1, relu: bool = False
) -> Elementwise | GeneralBatchNorm:
    values = "x", "y", ("y",), tuple(f"x{number}" for number in range(1, operands))
    kinds = {"leaky_relu": LeakyRelu, "clip": Clip, "quantise": FakeQuantize, "batch_norm": GeneralBatchNorm}
    if function in kinds:
        return kinds[function](*values, *numbers, relu=relu)
    return Arithmetic(*values, function, relu=relu)


def batch_norm(channels: int) -> BatchNorm:
    random = seeded(f"batch norm {channels}")
    scale, shift, mean = (normal(random, channels) for _ in range(3))
    return BatchNorm("x", "y", ("y",), scale, shift, mean, random.uniform(0.1, 3, channels).astype(np.float32), 1e-5)


def arrays(*shapes: Shape) -> list[Array]:
    random = seeded(str(shapes))
    return [normal(random, *shape) for shape in shapes]


# ---- ReLU


@pytest.mark.parametrize("shape", [*SHAPES, *DEEP_SHAPES, *MAPS], ids=str)
def test_relu_of_any_rank(device: Device, shape: Shape) -> None:
    (x,) = arrays(shape)
    check_all_layouts(device, RELU, [x], np.where(x < 0, np.float32(0), x))


def test_relu_of_special_values(device: Device) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0, 1e-45, -1e-45, 3e38, -3e38]], np.float32)
    expected = np.array([[np.nan, np.inf, 0, 0, 1e-45, 0, 3e38, 0]], np.float32)
    np.testing.assert_array_equal(run_op(device, RELU, x), expected)


# ---- Batch normalisation of constants


@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_batch_norm(device: Device, shape: Shape) -> None:
    check_op(device, batch_norm(shape[1]), normal(seeded(str(shape)), *shape), inner=True)


@pytest.mark.parametrize("shape", [*MAPS, (2, 5, 2, 8)], ids=str)
def test_batch_norm_gives_the_same_bits_in_every_layout(device: Device, shape: Shape) -> None:
    op, (x,) = batch_norm(shape[1]), arrays(shape)
    check_all_layouts(device, op, [x], compute(device, op, [x], (Layout.NHWC, Layout.NHWC)))


@pytest.mark.sanitize
@pytest.mark.parametrize("op", [RELU, batch_norm(5)], ids=lambda op: type(op).__name__)
def test_small_shapes(device: Device, op: Relu | BatchNorm) -> None:
    check_op(device, op, normal(seeded("small"), 2, 5, 9, 9), inner=True)


# ---- Elementwise

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


@pytest.mark.parametrize("shape", [*SHAPES, *DEEP_SHAPES], ids=str)
@pytest.mark.parametrize("function", BINARY)
def test_operands_of_one_shape(device: Device, function: str, shape: Shape) -> None:
    a, b = arrays(shape, shape)
    op = elementwise(function, operands=2)
    check_all_layouts(device, op, [a, b], np.asarray(BINARY[function](a, b)))


@pytest.mark.sanitize
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_broadcasting(device: Device, shapes: tuple[Shape, Shape]) -> None:
    a, b = arrays(*shapes)
    check_all_layouts(device, elementwise("sub", operands=2), [a, b], a - b)
    check_all_layouts(device, elementwise("div", operands=2), [b, a], b / a)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("function", ["add", "mul"])
def test_several_operands(device: Device, function: str, count: int) -> None:
    shapes: Sequence[Shape] = [(2, 3, 1, 4), (3, 2, 1), (1, 1, 2, 4), (4,), (2, 3, 2, 4)][:count]
    operands = arrays(*shapes)
    check_all_layouts(device, elementwise(function, operands=count), operands, reduce(BINARY[function], operands))


def test_relu_behind_a_function(device: Device) -> None:
    a, b = arrays((2, 5, 3, 3), (2, 5, 3, 3))
    y = a - b
    check_all_layouts(device, elementwise("sub", operands=2, relu=True), [a, b], np.where(y < 0, np.float32(0), y))


def test_padding_of_operands_does_not_reach_the_output(device: Device) -> None:
    """0 / 0 in the padding would be NaN there; zero divided by a real zero is NaN."""
    a, b = np.zeros((2, 2, 5, 3, 3), np.float32)
    y = compute(device, elementwise("div", operands=2), [a, b], (Layout.NHWC,) * 3)
    assert np.isnan(y).all()
    y = compute(device, elementwise("clip", (1.0, 2.0)), [a], (Layout.NHWC,) * 2)
    assert_same_bits(y, np.ones_like(a))


@pytest.mark.parametrize("shape", [(), (9,), (2, 5, 3, 3), (1, 2, 1, 3, 2)], ids=str)
def test_leaky_relu(device: Device, shape: Shape) -> None:
    (x,) = arrays(shape)
    check_all_layouts(device, elementwise("leaky_relu", (0.1,)), [x], np.where(x < 0, np.float32(0.1) * x, x))


@pytest.mark.parametrize("limits", [(0, 255), (-128, 127), (-3, 252)], ids=str)
@pytest.mark.parametrize("shape", [(300,), (2, 5, 3, 3), (2, 4, 2, 8)], ids=str)
def test_quantise(device: Device, shape: Shape, limits: tuple[int, int]) -> None:
    """Ties go to even, what is beyond the limits to them."""
    step = np.float32(0.25)
    x = np.round(200 * normal(seeded(str(shape)), *shape)) / np.float32(8)
    low, high = map(np.float32, limits)
    steps = np.rint(x / step)
    expected = np.where(steps > low, np.where(steps < high, steps, high), low) * step
    check_all_layouts(device, elementwise("quantise", (float(step), float(low), float(high))), [x], expected)


def test_quantise_of_special_values(device: Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e30, -1e30], np.float32)
    y = compute(device, elementwise("quantise", (0.5, -128.0, 127.0)), [x], (Layout.PLAIN, Layout.PLAIN))
    np.testing.assert_array_equal(y, np.array([np.nan, 63.5, -64, 0, 63.5, -64], np.float32))


LIMITS = ((-0.5, 0.75), (-np.inf, 0.5), (0.25, np.inf), (-np.inf, np.inf), (2.0, 1.0))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("shape", [(), (2, 5, 3, 3), (3, 4, 2)], ids=str)
def test_clip(device: Device, shape: Shape, limits: tuple[float, float]) -> None:
    """Also with limits as operands; a lower limit above the upper one gives the upper one."""
    (x,) = arrays(shape)
    low, high = (np.asarray(limit, np.float32) for limit in limits)
    expected = np.asarray(np.minimum(np.maximum(x, low), high))
    check_all_layouts(device, elementwise("clip", limits), [x], expected)
    check_all_layouts(device, elementwise("clip", operands=3), [x, low, high], expected)


def test_clip_of_special_values(device: Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.5], np.float32)
    expected = np.array([np.nan, 1, 0, 0.5], np.float32)
    one = np.array([1], np.float32)
    for op, operands in ((elementwise("clip", (0.0, 1.0)), [x]), (elementwise("clip", operands=3), [x, one - 1, one])):
        layouts = (Layout.PLAIN,) * (len(operands) + 1)
        np.testing.assert_array_equal(compute(device, op, operands, layouts), expected)


@pytest.mark.parametrize("shape", [(3, 5), (2, 8), (2, 5, 7), (2, 5, 3, 3), (1, 8, 2, 4), (2, 3, 1, 2, 2)], ids=str)
def test_batch_norm_of_run_time_parameters(device: Device, shape: Shape) -> None:
    random = seeded(str(shape))
    x = normal(random, *shape)
    scale, shift, mean = (normal(random, shape[1]) for _ in range(3))
    variance = random.uniform(0.1, 3, shape[1]).astype(np.float32)
    op = elementwise("batch_norm", (1e-2,), operands=5)
    operands = [x, scale, shift, mean, variance]
    s, b, m, v = (array.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 2)) for array in operands[1:])
    expected = (x - m) / np.sqrt(v + 1e-2) * s + b
    y = compute(device, op, operands, (Layout.PLAIN,) * 6)
    assert_close(y, expected, atol=2e-6, rtol=2e-6)
    check_all_layouts(device, op, operands, y)


def test_nothing_to_compute(device: Device) -> None:
    a = np.zeros((2, 0, 3), np.float32)
    check_all_layouts(device, elementwise("add", operands=2), [a, a], a)


# ---- What the kernel is told


def width_and_vectors(step: KernelLaunch) -> tuple[object, object]:
    numbers = [argument.value for argument in step.arguments if isinstance(argument, Scalar)]
    return numbers[6], numbers[7]


def test_vectors_are_read_where_they_lie_in_a_row() -> None:
    place = Pointer(Arena.ACTIVATIONS, 256)
    y = TensorDesc("y", (2, 5, 3, 3), Layout.NHWC, place)
    x = TensorDesc("x", (2, 5, 3, 3), Layout.NHWC, place)
    assert width_and_vectors(relu_step(x, y, ("y",))) == (4, 1)
    plain = TensorDesc("x", (2, 5, 3, 3), Layout.PLAIN, place)
    assert width_and_vectors(relu_step(plain, y, ("y",))) == (4, 0)
    assert width_and_vectors(relu_step(x, plain, ("y",))) == (1, 0)
    odd = TensorDesc("y", (2, 8), Layout.PLAIN, Pointer(Arena.ACTIVATIONS, 260))
    assert width_and_vectors(relu_step(odd, odd, ("y",))) == (1, 0)
    even = TensorDesc("y", (2, 8), Layout.PLAIN, place)
    assert width_and_vectors(relu_step(odd, even, ("y",))) == (4, 0)
    row = View(place, (8,), (1,))
    step = elementwise_step("add", [View(place, (), ()), row], even, names=("y",), label="add")
    assert width_and_vectors(step) == (4, 2)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (3, 7), (2, 3, 5)], ids=str)
def test_gradients_pass_between_the_limits_of_a_clip(device: Device, shape: Shape, count: int) -> None:
    random = seeded(f"clip gradient {shape} {count}")
    y = normal(random, *shape).clip(-0.7, 0.9)
    y.flat[0] = np.nan
    gradients = [random.integers(-9, 9, shape).astype(np.float32) for _ in range(count)]
    low, high = y[y < 0].min(), np.nanmax(y)
    op = ClipGradient("y", "x", ("x",), tuple(f"g{k}" for k in range(count)), low=-0.7, high=0.9)
    expected = np.where((y <= low) | (y >= high), 0, sum(gradients)).astype(np.float32) + 0.0
    assert (y <= low).any()
    assert (y >= high).any()
    check_all_layouts(device, op, [y, *gradients], expected)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 5, 3, 3), (2, 8, 4, 4), (3, 7), (2, 3, 5)], ids=str)
def test_gradients_pass_where_a_relu_gave_something(device: Device, shape: Shape, count: int) -> None:
    random = seeded(f"relu gradient {shape} {count}")
    y = np.maximum(normal(random, *shape), 0)
    y.flat[0], y.flat[1] = -0.0, np.nan  # NaN went through the ReLU, and so does its gradient
    gradients = [random.integers(-9, 9, shape).astype(np.float32) for _ in range(count)]
    op = ReluGradient("y", "x", ("x",), tuple(f"g{k}" for k in range(count)))
    expected = np.where(y <= 0, 0, sum(gradients)).astype(np.float32) + 0.0
    check_all_layouts(device, op, [y, *gradients], expected)
