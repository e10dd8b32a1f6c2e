"""take.cu against numpy: images of every element type and any strides, and the zeros behind them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.kernels.layout.test_convert import bf16_bits
from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.op_kernels.layout.take import take
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Arena, DType, Pointer

SHAPES = ((3, 64, 1, 1), (2, 3, 33, 20), (1, 3, 5, 4), (2, 10), (4, 1, 3), (1, 7))
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
@pytest.mark.parametrize("element", [DType.F32, DType.F16, DType.BF16, DType.U8], ids=lambda e: e.name)
def test_images_come_in(device: Device, element: DType, order: str, shape: tuple[int, ...]) -> None:
    numbers = normal(seeded(str(shape)), *shape, scale=30.0)
    types: Any = {DType.F16: np.float16, DType.U8: np.uint8}
    x = bf16_bits(numbers) if element is DType.BF16 else np.abs(numbers).astype(types.get(element, np.float32))
    expected = (x.astype(np.uint32) << 16).view(np.float32) if element is DType.BF16 else x
    expected = expected if element is DType.U8 else expected.astype(np.float32)
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
    step = take(Pointer(place.arena, place.offset + start), element, shape, strides, target, end)
    arguments(step)
    bench.run(step)
    is_vectors = order == "as it is" and math.prod(shape[1:]) % 4 == 0 and element is not DType.U8
    assert is_vectors <= (step.kernel.name == "take_dense")
    found = bench.get(target, (expected.nbytes + BEHIND,), np.uint8)
    assert not found[expected.nbytes :].any()
    left = found[: expected.nbytes].view(expected.dtype).reshape(shape)
    if element is DType.U8:
        np.testing.assert_array_equal(left, expected)
    else:
        assert_same_bits(left, expected)
    assert math.prod(shape) == left.size


@pytest.mark.parametrize(
    ("shift", "strides", "shape"),
    [(2, (60, 20, 5, 1), (2, 3, 4, 5)), (0, (62, 20, 5, 1), (2, 3, 4, 5)), (0, (30, 10, 5, 1), (2, 3, 2, 5))],
    ids=["place", "image", "values"],
)
def test_what_vectors_of_four_do_not_fit(shift: int, strides: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """One of each condition fails, and the launch is that of any strides."""
    places = (Pointer(Arena.ACTIVATIONS, offset) for offset in (shift, 4096, 8192))
    x, target, end = places
    assert take(x, DType.BF16, shape, strides, target, end).kernel.name == "take"
    assert take(target, DType.BF16, (2, 3, 4, 5), (60, 20, 5, 1), target, end).kernel.name == "take_dense"


def test_images_with_room_between_them(device: Device) -> None:
    numbers = normal(seeded("room"), 3, 64)
    bench = Bench(device)
    place, target = bench.put(numbers), bench.room(4 * 3 * 40)
    end = Pointer(target.arena, target.offset + 4 * 3 * 40)
    step = take(place, DType.F32, (3, 2, 20), (64, 20, 1), target, end)
    assert step.kernel.name == "take_dense"
    bench.run(step)
    assert_same_bits(bench.get(target, (3, 40), np.float32), np.ascontiguousarray(numbers[:, :40]))


@pytest.mark.sanitize
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("element", [DType.F32, DType.BF16, DType.U8], ids=lambda e: e.name)
def test_small_shapes(device: Device, element: DType, order: str) -> None:
    test_images_come_in(device, element, order, (2, 3, 33, 20))
