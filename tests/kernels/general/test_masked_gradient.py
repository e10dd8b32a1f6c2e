"""kernels/general/masked_gradient.cu against numpy, to the last bit, whatever operands are made of and lie like."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.layout.test_convert import encoded
from tests.support.kernel_harness import Array, Bench, normal, seeded
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.graph.gradient_ops import MaskedGradient
from vgg16gpu.compiler.graph.ops import Limits
from vgg16gpu.compiler.op_kernels.base import OpContext, OpMemory, Rescaling
from vgg16gpu.compiler.op_kernels.general import masked_gradient
from vgg16gpu.compiler.op_kernels.layout.rescale import EXPONENT
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import StatusBlock
from vgg16gpu.program.types import DeviceFacts, DType, Layout, TensorDesc

FACTS: Final = DeviceFacts("cpu", "a processor", 2, (0, 0), 1 << 17, 1 << 34, 1 << 34)
# Among them rows of several blocks, more channels than a block has, a map that has no window.
SHAPES: Final = (
    *((3, 20, 8, 9), (1, 3, 5, 7), (2, 64, 33, 40), (1, 70, 2, 3), (2, 8, 1, 6)),
    *((1, 64, 2, 130), (1, 1100, 2, 3)),
)
# Which of the map and two gradients have two bytes.
HALVES: Final = ((True, False, True), (False, True, False), (True, True, False), (False, False, True))
FORMS: Final = ((DType.BF16, DType.BF16), (DType.F32, DType.F32), (DType.F16, DType.F32))


@dataclass(frozen=True)
class Operand:
    """Numbers, and how they lie on the device."""

    numbers: Array
    element: DType = DType.F32
    layout: Layout = Layout.NHWC
    factors: Array | None = None  # of pairs, one for each image

    @property
    def scaled(self) -> Array:
        """With the factors of images in."""
        return self.numbers if self.factors is None else self.numbers * self.factors[:, None, None, None]

    @property
    def stored(self) -> Array:
        """The numbers as they lie on the device, with the factors of images in."""
        return decoded(encoded(self.scaled, self.element), self.element)

    @property
    def rounded(self) -> Array:
        """What the kernel reads."""
        return self.stored if self.factors is None else self.stored / self.factors[:, None, None, None]

    def put(self, bench: Bench, name: str) -> TensorDesc:
        """On the device; what is no number of its own is NaN."""
        if self.layout is Layout.PLAIN:
            return TensorDesc(name, self.numbers.shape, Layout.PLAIN, bench.put(self.numbers))
        last = np.moveaxis(self.scaled, 1, -1)
        missing = self.element.padded(last.shape[-1]) - last.shape[-1]
        poisoned = np.pad(last, [(0, 0)] * 3 + [(0, missing)], constant_values=np.nan)
        pointer = bench.put(encoded(poisoned, self.element))
        factors = None if self.factors is None else bench.put(self.factors)
        return TensorDesc(name, self.numbers.shape, Layout.NHWC, pointer, self.element, factor=factors)


def decoded(bits: npt.NDArray[Any], element: DType) -> Array:
    if element is DType.BF16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32).sum(0) if element is DType.F16_PAIR else bits.astype(np.float32)


def masked(
    device: Device,
    x: Operand,
    *gradients: Operand,
    pools: bool = False,
    out: DType = DType.F32,
    layout: Layout = Layout.NHWC,
    growth: int = 0,
    factors: list[Array] | None = None,
    limits: Limits | None = None,
    precision: str = "fp32",
) -> Array:
    """Return what the kernel gives, (N, C, H, W); what it stores behind the channels must be zero.

    growth: of what reads an `out` of float16 or pairs. factors: gets those of its images, those of results, and maxima.
    """
    bench = Bench(device)
    values = [operand.put(bench, f"g{k}") for k, operand in enumerate((x, *gradients))]
    is_scaled = out in (DType.F16, DType.F16_PAIR)
    count = len(x.numbers)
    room = TensorDesc("y", x.numbers.shape, layout, values[0].pointer, out)
    y = replace(room, pointer=bench.room(room.nbytes), factor=bench.room(8 * count) if is_scaled else None)
    op = MaskedGradient("g0", "y", ("y",), tuple(value.name for value in values[1:]), pools=pools, range=limits)
    shapes = tuple(value.shape for value in values)
    layer = OpContext(op, shapes[0], FACTS, precision, other_shapes=shapes[1:])
    nowhere = values[0].pointer
    maxima = bench.put(np.zeros(count, np.float32))
    places = OpMemory(nowhere, StatusBlock(nowhere, nowhere, count), nowhere, maxima)
    if is_scaled:
        bounds = [bench.put(np.abs(each.stored).reshape(count, -1).max(1, initial=0)) for each in gradients]
        places = replace(places, rescaling=Rescaling(tuple(bounds), EXPONENT, growth))
    steps = masked_gradient.steps(layer, tuple(values), y, (), places)
    for step in steps:
        arguments(step)
    bench.run(*steps)
    planes = (out.planes,) if out.planes > 1 else ()
    kinds = {DType.BF16: np.uint16, DType.F16: np.float16, DType.F16_PAIR: np.float16}
    found = decoded(bench.get(y.pointer, (*planes, *y.stored_shape), kinds.get(out, np.float32)), out)
    if y.factor and factors is not None:
        factors += [*bench.get(y.factor, (2, count)), bench.get(maxima, (count,))]
    if layout is Layout.PLAIN:
        return found
    channels = x.numbers.shape[1]
    np.testing.assert_array_equal(found[..., channels:], 0)
    return np.moveaxis(found[..., :channels], -1, 1)


def expected(x: Operand, *gradients: Operand, pools: bool = False, out: DType = DType.F32) -> Array:
    """In float32, the sum in the order of the gradients, rounded once."""
    map_, (first, *others) = x.rounded, [gradient.rounded for gradient in gradients]
    total = handed_back(map_, first) if pools else first
    for other in others:
        total = total + other
    return Operand(np.where(map_ <= 0, np.float32(0), total), out).rounded


def handed_back(x: Array, gradient: Array) -> Array:
    """Of 2x2 windows to their first maximum, row by row; of several NaN to the last."""
    found = np.zeros_like(x)
    batch, channels, rows, columns = gradient.shape
    for n, c, oh, ow in itertools.product(range(batch), range(channels), range(rows), range(columns)):
        best: tuple[int, int] | None = None
        for h, w in ((2 * oh + i, 2 * ow + j) for i in (0, 1) for j in (0, 1)):
            if best is None or x[n, c, h, w] > x[n, c, *best] or np.isnan(x[n, c, h, w]):
                best = h, w
        assert best
        found[n, c, *best] = gradient[n, c, oh, ow]
    return found


def of_a_relu(random: np.random.Generator, *shape: int) -> Array:
    """Half zeros, and whole numbers, so that windows have ties."""
    return np.maximum(random.integers(-3, 4, shape), 0).astype(np.float32)


def pooled_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], shape[2] // 2, shape[3] // 2)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("element", "out"), FORMS, ids=lambda e: e.name)
@pytest.mark.parametrize("pools", [True, False])
@pytest.mark.parametrize("count", [4, 1, 3])
@pytest.mark.first_case(reason="a sweep; the tests behind have other elements, runtime/on_device/test_loss.py networks")
def test_masks_and_sums(
    device: Device, element: DType, out: DType, shape: tuple[int, ...], pools: bool, count: int
) -> None:
    random = seeded(f"{shape} {element} {count}")
    x = Operand(of_a_relu(random, *shape), element)
    shapes = [pooled_shape(shape) if pools and k == 0 else shape for k in range(count)]
    gradients = [Operand(normal(random, *each), element) for each in shapes]
    found = masked(device, x, *gradients, pools=pools, out=out)
    np.testing.assert_array_equal(found, expected(x, *gradients, pools=pools, out=out))


@pytest.mark.first_case(reason="runtime/plans has gradients of clips in every precision")
@pytest.mark.parametrize("limits", [(-0.7, 1.3), (0.0, 1.3), (-0.7, 0.0)])
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_what_a_clip_has_given(device: Device, precision: str, pools: bool, limits: Limits) -> None:
    """What lies at a limit hands nothing on, as its element holds it: 0.7 and 1.3 are no numbers of any. NaN does."""
    element = {"fp32": DType.F32, "fp16": DType.F16, "bf16": DType.BF16}[precision]
    shape, random = (2, 20, 7, 6), seeded(f"clip {precision} {pools}")
    numbers = normal(random, *shape).clip(*limits)
    numbers[1, 3, 2, 2] = np.nan
    x = Operand(numbers, element)
    gradients = [Operand(normal(random, *each)) for each in (pooled_shape(shape) if pools else shape, shape)]
    found = masked(device, x, *gradients, pools=pools, limits=limits, precision=precision)
    low, high = (Operand(np.full((1, 1, 1, 1), limit, np.float32), element).rounded.item() for limit in limits)
    first, second = (gradient.rounded for gradient in gradients)
    total = (handed_back(x.rounded, first) if pools else first) + second
    at_end = (x.rounded <= low) | (x.rounded >= high)
    assert 0.1 < at_end.mean() < 0.9
    np.testing.assert_array_equal(found, np.where(at_end, np.float32(0), total))


@pytest.mark.first_case(reason="each combination is another compilation of the same lines")
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("element", [DType.F16, DType.BF16], ids=lambda e: e.name)
@pytest.mark.parametrize("halves", HALVES, ids=str)
def test_operands_of_both_elements(
    device: Device, element: DType, pools: bool, halves: tuple[bool, bool, bool]
) -> None:
    """Each of three operands as float32 or not, in every combination."""
    shape, random = (2, 20, 6, 5), seeded("both")
    numbers = [of_a_relu(random, *shape), normal(random, *(pooled_shape(shape) if pools else shape))]
    numbers.append(normal(random, *shape))
    elements = [element if is_half else DType.F32 for is_half in halves]
    x, *gradients = [Operand(each, of) for each, of in zip(numbers, elements, strict=True)]
    found = masked(device, x, *gradients, pools=pools)
    np.testing.assert_array_equal(found, expected(x, *gradients, pools=pools))


@pytest.mark.first_case(reason="runtime/plans/test_gradients_in_pairs.py has factors")
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "elements",
    list(itertools.product((DType.F16_PAIR, DType.F32), repeat=3)),
    ids=lambda each: "-".join(e.name for e in each),
)
def test_pairs_with_factors_of_images(
    device: Device, shape: tuple[int, ...], pools: bool, elements: tuple[DType, ...]
) -> None:
    """In every combination with float32; as float32, and as pairs with factors from the bounds of the gradients."""
    random = seeded(f"pairs {shape}")
    numbers = [of_a_relu(random, *shape), normal(random, *(pooled_shape(shape) if pools else shape), scale=1e-6)]
    numbers.append(normal(random, *shape, scale=1e-6))
    factors = [None, *np.exp2(random.integers(20, 30, (2, shape[0]))).astype(np.float32)]
    x, *gradients = [
        Operand(each, of, factors=factor if of is DType.F16_PAIR else None)
        for each, of, factor in zip(numbers, elements, factors, strict=True)
    ]
    right = expected(x, *gradients, pools=pools)
    np.testing.assert_array_equal(masked(device, x, *gradients, pools=pools), right)
    check_scaled(device, x, *gradients, pools=pools, out=DType.F16_PAIR)


@pytest.mark.sanitize
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("shape", [(3, 20, 8, 9), (2, 64, 5, 6)], ids=str)
def test_float16_with_factors_of_images(device: Device, shape: tuple[int, ...], pools: bool) -> None:
    """A gradient of float16 with factors and one of float32, as float16 with others."""
    random = seeded(f"float16 {shape}")
    first = normal(random, *(pooled_shape(shape) if pools else shape), scale=1e-6)
    first[0] *= 1e-4
    factors = np.exp2(random.integers(20, 25, shape[0])).astype(np.float32)
    x = Operand(of_a_relu(random, *shape), DType.F16)
    gradients = Operand(first, DType.F16, factors=factors), Operand(normal(random, *shape, scale=1e-7))
    check_scaled(device, x, *gradients, pools=pools, out=DType.F16)
    check_scaled(device, x, gradients[0], pools=pools, out=DType.F16)
    if pools:  # equal float16 may differ in what their rounding has left
        near = (1 + x.numbers * 2.0**-14).astype(np.float32)
        check_scaled(device, Operand(near, DType.F16_PAIR), *gradients, pools=True, out=DType.F16)


def check_scaled(device: Device, x: Operand, *gradients: Operand, pools: bool, out: DType) -> None:
    """Each image is brought to below 2^15 by the sum of its gradients' largest magnitudes."""
    right = expected(x, *gradients, pools=pools)
    of_images: list[Array] = []
    found = masked(device, x, *gradients, pools=pools, out=out, growth=3, factors=of_images)
    factors, of_results, maxima = of_images
    bounds = (
        sum(np.abs(each.rounded.astype(np.float64)).reshape(len(right), -1).max(1, initial=0) for each in gradients)
        * factors
    )
    assert ((bounds >= 2.0 ** (EXPONENT - 1)) & (bounds < 2.0**EXPONENT)).all()
    np.testing.assert_allclose(maxima, bounds, rtol=1e-3)
    np.testing.assert_array_equal(of_results, factors * np.float32(2.0**-3))
    np.testing.assert_array_equal(found, Operand(right, out, factors=factors).stored)


def test_images_without_a_power(device: Device) -> None:
    """Leave zeros, and what is no number, a factor of 1; only zeros are in range."""
    x = Operand(np.ones((4, 4, 4, 4), np.float32))
    numbers = np.ones((4, 4, 4, 4), np.float32)
    numbers[0], numbers[1, 3, 1, 1], numbers[2, 0, 0, 0] = 0, np.nan, -np.inf
    of_images: list[Array] = []
    masked(device, x, Operand(numbers), out=DType.F16_PAIR, factors=of_images)
    np.testing.assert_array_equal(of_images[0], [1, 1, 1, 2.0**14])
    np.testing.assert_array_equal(of_images[2], [2.0**14, np.nan, np.inf, 2.0**14])


def test_the_maximum_of_pairs_is_in_their_low_halves(device: Device) -> None:
    x = np.ones((1, 4, 2, 2), np.float32)
    x[0, 1, 1, 0] += 2.0**-14
    operand, gradient = Operand(x, DType.F16_PAIR), Operand(np.ones((1, 4, 1, 1), np.float32))
    found = masked(device, operand, gradient, pools=True)
    np.testing.assert_array_equal(found, expected(operand, gradient, pools=True))
    assert found[0, 1, 1, 0] == found[0, 0, 0, 0] == 1


@pytest.mark.first_case(reason="each combination is another compilation of the same lines")
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("channels", [3, 130])
@pytest.mark.parametrize(
    "layouts", list(itertools.product(Layout, repeat=4)), ids=lambda each: "-".join(layout.name for layout in each)
)
def test_operands_that_lie_as_onnx_has_them(
    device: Device, channels: int, pools: bool, layouts: tuple[Layout, ...]
) -> None:
    shape, random = (2, channels, 5, 6), seeded(f"plain {channels}")
    numbers = [of_a_relu(random, *shape), normal(random, *(pooled_shape(shape) if pools else shape))]
    numbers.append(normal(random, *shape))
    x, *gradients = [Operand(each, layout=how) for each, how in zip(numbers, layouts, strict=False)]
    found = masked(device, x, *gradients, pools=pools, layout=layouts[3])
    np.testing.assert_array_equal(found, expected(x, *gradients, pools=pools))


@pytest.mark.first_case(reason="bfloat16 is read as float32")
@pytest.mark.parametrize("element", [DType.F32, DType.BF16], ids=lambda e: e.name)
def test_nan_is_above_zero_and_the_last_of_several_the_maximum(device: Device, element: DType) -> None:
    x = np.ones((1, 4, 4, 4), np.float32)
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = x[0, 1, 2, 2] = np.nan
    x[0, 2] = 0
    operand, gradient = Operand(x, element), Operand(np.full((1, 4, 2, 2), 5, np.float32))
    found = masked(device, operand, gradient, pools=True)
    np.testing.assert_array_equal(found, expected(operand, gradient, pools=True))
    assert found[0, 0, 1, 0] == found[0, 1, 2, 2] == found[0, 3, 0, 0] == 5
    assert found[0, 0, 0, 1] == 0
    assert not found[0, 2].any()  # the maximum is 0: a ReLU hands nothing on there
    plain = Operand(np.full_like(x, 7))
    assert masked(device, operand, plain)[0, 0, 0, 1] == 7


def test_a_gradient_of_nan_stays_where_it_is(device: Device) -> None:
    x, gradient = np.ones((2, 4, 3, 3), np.float32), np.ones((2, 4, 3, 3), np.float32)
    x[0, 1, 1, 1] = 0
    gradient[0, 1, 1, 1] = gradient[1, 2, 2, 0] = np.nan
    found = masked(device, Operand(x), Operand(gradient))
    assert found[0, 1, 1, 1] == 0
    assert np.isnan(found[1, 2, 2, 0])
    assert np.count_nonzero(np.isnan(found)) == 1


@pytest.mark.parametrize(
    ("pools", "shapes"),
    [
        (True, [(1, 4, 5, 5)]),
        (False, [(1, 4, 2, 2)]),
        (True, [(1, 4, 2, 2), (1, 4, 5, 4)]),
        (True, [(1, 3, 2, 2)]),
    ],
)
def test_gradients_of_other_shapes_are_refused(pools: bool, shapes: list[tuple[int, ...]]) -> None:
    op = MaskedGradient("x", "y", ("y",), tuple(f"g{k}" for k in range(len(shapes))), pools=pools)
    with pytest.raises(ModelError, match="MaskedGradient 'y'"):
        op.shape_of_y((1, 4, 5, 5), *shapes)
