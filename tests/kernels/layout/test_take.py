"""take.cu against numpy: images of every element type and any strides, and the zeros behind them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.kernels.layout.test_convert import bf16_bits
from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded
from vgg16gpu.compiler.lowering.layout.take import take
from vgg16gpu.devices.base import Device
from vgg16gpu.program.values import Element, Pointer

SHAPES = ((1, 3, 5, 4), (2, 3, 33, 20), (3, 64, 1, 1), (2, 10), (4, 1, 3), (1, 7))
ORDERS = ("as it is", "channels last", "every second", "backwards")
BEHIND = 76


def lying(x: Any, order: str) -> Any:
    """The same array in another order of memory."""
    if order == "channels last":
        return np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
    if order == "every second":
        return np.repeat(x, 2, axis=-1)[..., ::2]
    return x[..., ::-1].copy()[..., ::-1] if order == "backwards" else x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("element", [Element.F32, Element.F16, Element.BF16, Element.U8], ids=lambda e: e.name)
def test_images_come_in(device: Device, element: Element, order: str, shape: tuple[int, ...]) -> None:
    numbers = normal(seeded(str(shape)), *shape, scale=30.0)
    types: Any = {Element.F16: np.float16, Element.U8: np.uint8}
    x = bf16_bits(numbers) if element is Element.BF16 else np.abs(numbers).astype(types.get(element, np.float32))
    expected = (x.astype(np.uint32) << 16).view(np.float32) if element is Element.BF16 else x
    expected = expected if element is Element.U8 else expected.astype(np.float32)
    x = lying(x, order)
    whole = x
    while whole.base is not None and isinstance(whole.base, np.ndarray):
        whole = whole.base
    bench = Bench(device)
    place = bench.put(whole)
    start = x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    target = bench.put(np.full(expected.nbytes + BEHIND, 7, np.uint8))
    end = Pointer(target.arena, target.offset + expected.nbytes + BEHIND)
    strides = [step // x.itemsize for step in x.strides]
    bench.run(take(Pointer(place.arena, place.offset + start), element, shape, strides, target, end))
    found = bench.get(target, (expected.nbytes + BEHIND,), np.uint8)
    assert not found[expected.nbytes :].any()
    left = found[: expected.nbytes].view(expected.dtype).reshape(shape)
    if element is Element.U8:
        np.testing.assert_array_equal(left, expected)
    else:
        assert_same_bits(left, expected)
    assert math.prod(shape) == left.size
