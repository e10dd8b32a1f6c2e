"""convert.cu against numpy: every element into every other, to the last bit, and the magnitudes it notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded, stored
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.op_kernels.layout.convert import convert
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DType, Layout, Pointer, TensorDesc
from vgg16gpu.runtime.outputs import decoded

FLOATS = (DType.F16, DType.BF16, DType.F16_PAIR)
BYTES = (DType.U8, DType.S8)
STEP = 0.0371
SHAPES: tuple[Shape, ...] = ((1, 3, 5, 4), (2, 64, 3, 3), (3, 70, 1, 1), (2, 10), (1, 4096), (2, 5, 40, 30))


def bf16_bits(x: Array) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(x), 0x7FFF, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def encoded(x: Array, element: DType, scale: Array | None = None) -> npt.NDArray[Any]:
    """Numbers in stored order as bytes in memory, after numpy."""
    with np.errstate(over="ignore", invalid="ignore"):
        match element:
            case DType.F32:
                return x
            case DType.F16:
                return x.astype(np.float16)
            case DType.BF16:
                return bf16_bits(x)
            case DType.F16_PAIR:
                scaled = x * (1 if scale is None else scale)
                high = scaled.astype(np.float16)
                return np.stack([high, (scaled - high.astype(np.float32)).astype(np.float16)])
        numbers = np.nan_to_num(np.rint(x * (np.float32(1) / np.float32(STEP))), nan=0)
        limits = (0, 255) if element is DType.U8 else (-128, 127)
        return np.clip(numbers, *limits).astype(np.uint8 if element is DType.U8 else np.int8)


@dataclass(frozen=True, eq=False)
class Converted:
    """What a conversion left."""

    bits: npt.NDArray[np.uint8]  # of y
    numbers: Array  # in y's stored shape; scales left in
    maxima: npt.NDArray[np.float32]


def run(device: Device, x: Array, source: DType, target: DType, scale: Array | None = None) -> Converted:
    """Convert x (N, C, ...) from one element into another; `scale` is that of pairs, per stored channel."""
    bench = Bench(device)
    lying = stored(x, source)
    place = bench.put(encoded(lying, source, scale)), bench.put(np.zeros(len(x), np.float32))
    scales = None if scale is None else bench.put(scale)
    before, after = (_value(x.shape, element, place[0], scales) for element in (source, target))
    y = _value(x.shape, target, bench.room(after.nbytes), scales)
    bench.run(convert(before, y, place[1]))
    bits = bench.get(y.pointer, (y.nbytes,), np.uint8)
    return Converted(bits, decoded(y, bits), bench.get(place[1], (len(x),)))


def _value(shape: Shape, element: DType, pointer: Pointer, scales: Pointer | None) -> TensorDesc:
    scale = scales if element is DType.F16_PAIR else None
    return TensorDesc("x", shape, Layout.NHWC, pointer, element, scale, STEP if element in BYTES else 1.0)


def image(shape: Shape) -> Array:
    return normal(seeded(str(shape)), *shape, scale=3.0)


def powers(shape: Shape) -> Array:
    """A scale for each channel of a pair."""
    exponents = seeded("scales").integers(-3, 9, DType.F16_PAIR.padded(shape[1]))
    return np.exp2(exponents).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", [*FLOATS, *BYTES], ids=lambda e: e.name)
def test_float32_into_every_element(device: Device, target: DType, shape: Shape) -> None:
    x = image(shape)
    scale = powers(shape) if target is DType.F16_PAIR else None
    made = run(device, x, DType.F32, target, scale)
    expected = encoded(stored(x, target), target, scale)
    np.testing.assert_array_equal(made.bits, expected.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", [DType.F16_PAIR, DType.F16, DType.BF16, *BYTES], ids=lambda e: e.name)
@pytest.mark.first_case(reason="networks of every precision give their values as float32")
def test_every_element_into_float32(device: Device, source: DType, shape: Shape) -> None:
    x = image(shape)
    scale = powers(shape) if source is DType.F16_PAIR else None
    made = run(device, x, source, DType.F32, scale)
    raw = encoded(stored(x, source), source, scale)
    value = _value(shape, source, Pointer, None)  # type: ignore[arg-type]
    numbers = decoded(value, raw.reshape(-1).view(np.uint8))
    expected = numbers[..., : shape[1]] if scale is None else (numbers / scale)[..., : shape[1]]
    assert_same_bits(made.numbers[..., : shape[1]], expected.astype(np.float32))
    assert not made.numbers[..., shape[1] :].any()


def test_pairs_with_factors_of_images(device: Device) -> None:
    x = image((3, 5, 40, 30))
    factors = np.array([2.0**-3, 2.0**10, 1], np.float32)
    lying = encoded(stored(x * factors[:, None, None, None], DType.F16_PAIR), DType.F16_PAIR)
    bench = Bench(device)
    pointer, place = bench.put(lying), bench.put(factors)
    before = TensorDesc("x", x.shape, Layout.NHWC, pointer, DType.F16_PAIR, factor=place)
    after = TensorDesc("x", x.shape, Layout.NHWC, bench.room(4 * x[:, :1].size * DType.F32.padded(5)))
    bench.run(convert(before, after, place))
    expected = lying.astype(np.float32).sum(0)[..., :8] / factors[:, None, None, None]
    assert_same_bits(bench.get(after.pointer, after.stored_shape), expected.astype(np.float32))


@pytest.mark.parametrize("target", [DType.F16, DType.F16_PAIR], ids=lambda e: e.name)
def test_the_largest_magnitude_of_each_image_is_noted(device: Device, target: DType) -> None:
    x = image((4, 5, 40, 30))
    x[1, 2, 3, 4], x[2] = -900, 0
    scale = np.full(64, 4, np.float32) if target is DType.F16_PAIR else np.ones(64, np.float32)
    made = run(device, x, DType.F32, target, scale)
    largest = np.abs(x.reshape(4, -1)).max(axis=1) * scale[0]
    assert_same_bits(made.maxima, largest.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("bad", "noted"), [(np.nan, np.nan), (np.inf, np.inf), (70000.0, np.inf)])
@pytest.mark.parametrize("target", [DType.F16, DType.F16_PAIR], ids=lambda e: e.name)
def test_what_leaves_the_range_is_noted_in_its_image(device: Device, target: DType, bad: float, noted: float) -> None:
    x = image((3, 5, 20, 20))
    x[1, 0, 0, 0], x[1, 3, 19, 19] = bad, 5
    made = run(device, x, DType.F32, target, np.ones(64, np.float32))
    np.testing.assert_array_equal(made.maxima[1], noted)
    assert (made.maxima[[0, 2]] < 100).all()


@pytest.mark.parametrize("target", [DType.BF16, *BYTES], ids=lambda e: e.name)
def test_other_elements_note_nothing(device: Device, target: DType) -> None:
    assert not run(device, image((2, 5, 6, 6)), DType.F32, target).maxima.any()


def test_bytes_saturate_and_nan_becomes_zero(device: Device) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5 * STEP, 1.5 * STEP, -1.5 * STEP]], np.float32)
    unsigned = run(device, x, DType.F32, DType.U8).bits[:8]
    assert unsigned.tolist() == [0, 255, 0, 255, 0, 0, 2, 0]
    signed = run(device, x, DType.F32, DType.S8).bits[:8].view(np.int8)
    assert signed.tolist() == [0, 127, -128, 127, -128, 0, 2, -2]


@pytest.mark.sanitize
@pytest.mark.first_case(reason="for the sanitizers")
@pytest.mark.parametrize("target", [*FLOATS, *BYTES], ids=lambda e: e.name)
def test_small_shapes(device: Device, target: DType) -> None:
    x = image((2, 5, 3, 3))
    run(device, x, DType.F32, target, powers(x.shape))
    run(device, x, target, DType.F32, powers(x.shape))
