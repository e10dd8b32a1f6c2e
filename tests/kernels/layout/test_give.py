"""give.cu against numpy: every stored value into every form, to the last bit, and nothing beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.layout.test_convert import BYTES, STEP, bf16_bits, encoded, powers
from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded, stored
from vgg16gpu.compiler.op_kernels.layout.give import give
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DType, Layout, TensorDesc, TensorFormat
from vgg16gpu.runtime.outputs import decoded

SHAPES = ((1, 3, 5, 4), (2, 64, 3, 3), (3, 70, 1, 1), (2, 10), (2, 33, 40, 7), (2, 8, 33, 20), (3, 1, 6, 6))
STORED = [*((element, Layout.NHWC) for element in DType), (DType.F32, Layout.PLAIN)]
JUNK = 0x5A


def numbers_in(found: Any, form: TensorFormat, shape: tuple[int, ...]) -> Any:
    """What an output holds, as float32; what lies between is to be as it was."""
    if form.element is DType.BF16:
        numbers: Any = (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = found.view(np.float16 if form.element is DType.F16 else np.float32)
    seen = found.view(f"u{form.element.nbytes}").copy()

    def inside(array: Any) -> Any:
        steps = [array.itemsize * stride for stride in form.strides(shape)]
        return np.lib.stride_tricks.as_strided(array, shape, steps)

    inside(seen)[...] = int.from_bytes([JUNK] * form.element.nbytes, "little")
    assert (seen.view(np.uint8) == JUNK).all()
    return inside(numbers).astype(np.float32)


def rounded(x: Any, element: DType) -> Any:
    if element is DType.BF16:
        return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float16).astype(np.float32) if element is DType.F16 else x


@pytest.mark.first_case(reason="test_small_shapes has the forms")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("given", [DType.F32, DType.F16, DType.BF16], ids=lambda e: e.name)
@pytest.mark.parametrize(("element", "layout"), STORED, ids=lambda kind: kind.name)
def test_every_form(device: Device, element: DType, layout: Layout, given: DType, shape: tuple[int, ...]) -> None:
    x = normal(seeded(str(shape)), *shape, scale=3.0)
    scale = powers(shape) if element is DType.F16_PAIR else None
    lying = x if layout is Layout.PLAIN else stored(x, element)
    raw = encoded(lying, element, scale)
    bench = Bench(device)
    scales = None if scale is None else bench.put(scale)
    value = TensorDesc("x", shape, layout, bench.put(raw), element, scales, STEP if element in BYTES else 1.0)
    expected = decoded(value, raw.reshape(-1).view(np.uint8))
    expected = expected if scale is None else expected / scale
    if layout is Layout.NHWC:
        expected = np.moveaxis(expected, -1, 1)[:, : shape[1]]
    pitches = (None, shape[1], shape[1] + 3)
    for form in (TensorFormat(given, pitch) for pitch in pitches):
        for images in {1, shape[0]}:
            wanted = (images, *shape[1:])
            target = bench.put(np.full(form.element.nbytes * form.extent(wanted), JUNK, np.uint8))
            bench.run(give(value, form, target, images))
            found = bench.get(target, (form.element.nbytes * form.extent(wanted),), np.uint8)
            right = rounded(np.ascontiguousarray(expected[:images], np.float32), given)
            assert_same_bits(np.ascontiguousarray(numbers_in(found, form, wanted)), right)


@pytest.mark.parametrize("pitch", [None, 3])
def test_pairs_with_factors_of_images(device: Device, pitch: int | None) -> None:
    """Few channels are padded to 16 bytes."""
    x, factors = normal(seeded("factors"), 3, 3, 40, 33), np.array([2.0**9, 1, 2.0**-3], np.float32)
    raw = encoded(stored(x * factors[:, None, None, None], DType.F16_PAIR), DType.F16_PAIR)
    bench = Bench(device)
    value = TensorDesc("x", x.shape, Layout.NHWC, bench.put(raw), DType.F16_PAIR, factor=bench.put(factors))
    form, target = TensorFormat(pitch=pitch), bench.put(np.full(x.nbytes, JUNK, np.uint8))
    bench.run(give(value, form, target, 2))
    found = numbers_in(bench.get(target, (x[:2].nbytes,), np.uint8), form, (2, *x.shape[1:]))
    expected = np.moveaxis(raw.astype(np.float32).sum(0) / factors[:, None, None, None], -1, 1)[:2, :3]
    assert_same_bits(np.ascontiguousarray(found), np.ascontiguousarray(expected, np.float32))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (2, 2, 2, 2, 3)], ids=str)
def test_values_of_any_rank(device: Device, shape: tuple[int, ...]) -> None:
    x = normal(seeded(str(shape)), *shape)
    bench = Bench(device)
    value = TensorDesc("x", shape, Layout.PLAIN, bench.put(x))
    target = bench.room(x.nbytes)
    bench.run(give(value, TensorFormat(), target))
    assert_same_bits(bench.get(target, x.shape, np.float32), x)


@pytest.mark.sanitize
@pytest.mark.parametrize("given", [DType.F32, DType.F16], ids=lambda e: e.name)
@pytest.mark.parametrize(("element", "layout"), STORED, ids=lambda kind: kind.name)
def test_small_shapes(device: Device, element: DType, layout: Layout, given: DType) -> None:
    test_every_form(device, element, layout, given, (2, 8, 33, 20))
