"""kernels/general/pool_stored.cu against numpy: the largest of what is stored, to the last bit, and its magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.layout.test_convert import encoded
from tests.support.kernel_harness import Bench, normal, seeded, stored
from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.compiler.op_kernels.base import OpContext, OpMemory
from vgg16gpu.compiler.op_kernels.general import pool_stored
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import StatusBlock
from vgg16gpu.program.types import DeviceFacts, DType, Layout, TensorDesc

FACTS = DeviceFacts("cpu", "a processor", 2, (0, 0), 1 << 17, 1 << 34, 1 << 34)
POOL = Pool("x", "y", ("y",), "max", MAX_POOL_2X2)
ELEMENTS = (DType.F16, DType.BF16, DType.F16_PAIR)


def pooled(device: Device, x: Any, element: DType) -> tuple[Any, Any]:
    """What lies in y, as bits (plane, N, OH, OW, pitch), and the magnitudes."""
    batch, channels, height, width = x.shape
    bench = Bench(device)
    source = TensorDesc("x", x.shape, Layout.NHWC, bench.put(encoded(stored(x, element), element)), element)
    shape = batch, channels, height // 2, width // 2
    room = TensorDesc("y", shape, Layout.NHWC, source.pointer, element)
    y = TensorDesc("y", shape, Layout.NHWC, bench.room(room.nbytes), element)
    maxima = bench.put(np.zeros(batch, np.float32))
    places = OpMemory(maxima, StatusBlock(maxima, maxima, batch), maxima, maxima)
    bench.run(*pool_stored.steps(OpContext(POOL, x.shape, FACTS), source, y, (), places))
    bits = bench.get(y.pointer, (element.planes, *y.stored_shape), np.uint16)
    return bits, bench.get(maxima, (batch,), np.float32)


def expected(x: Any, element: DType) -> Any:
    """The bits of the largest of each window, the last of equals."""
    bits = encoded(stored(x, element), element).view(np.uint16).reshape(element.planes, -1)
    shape = (element.planes, len(x), *x.shape[2:], element.padded(x.shape[1]))
    bits = bits.reshape(shape)
    values = numbers(bits, element)
    height, width = (size // 2 * 2 for size in x.shape[2:])
    corners = [(i, j) for i in (0, 1) for j in (0, 1)]
    found = [(values[:, i:height:2, j:width:2], bits[:, :, i:height:2, j:width:2]) for i, j in corners]
    best, chosen = found[0]
    for value, its in found[1:]:
        keep = (best > value) | np.isnan(best)
        best, chosen = np.where(keep, best, value), np.where(keep, chosen, its)
    return chosen


def numbers(bits: Any, element: DType) -> Any:
    if element is DType.BF16:
        return (bits[0].astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32).sum(axis=0)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "shape", [(1, 64, 4, 4), (3, 3, 7, 9), (2, 130, 5, 2), (2, 64, 33, 40), (1, 70, 2, 3)], ids=str
)
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
def test_the_largest_of_each_window(device: Device, element: DType, shape: tuple[int, ...]) -> None:
    x = normal(seeded(str(shape)), *shape, scale=30.0)
    found, maxima = pooled(device, x, element)
    right = expected(x, element)
    np.testing.assert_array_equal(found, right)
    largest = np.abs(numbers(right[:1], element)).reshape(len(x), -1).max(axis=1)
    np.testing.assert_array_equal(maxima, np.zeros(len(x)) if element is DType.BF16 else largest)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
def test_nan_and_infinity_stay(device: Device, element: DType) -> None:
    x = np.ones((2, 64, 4, 4), np.float32)
    x[0, 5, 1, 1], x[1, 6, 2, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        found, maxima = pooled(device, x, element)
        values = numbers(found, element)
    assert np.isnan(values[0, 0, 0, 5])
    assert np.count_nonzero(~np.isfinite(values)) == 2
    assert (values[np.isfinite(values)] == 1).all()
    if element is not DType.BF16:
        assert np.isnan(maxima[0])
        assert np.isinf(maxima[1])
