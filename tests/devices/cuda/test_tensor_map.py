"""Tensor maps: what the driver is asked for when nothing is swizzled, and that the copy engine moves what they say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.cpu_kernels import fixture_kernel
from tests.support.kernel_harness import Bench, seeded
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import Dim3, KernelLaunch, Scalar, TmaDescriptor
from vgg16gpu.program.types import DType, Pointer

POISON = 0xFF
N, H, W = 2, 5, 7
PIXELS = {
    DType.F32: np.float32,
    DType.F16: np.uint16,
    DType.BF16: np.uint16,
    DType.U8: np.uint8,
    DType.S8: np.uint8,
}
BOXES = (  # element, channels stored, box: channels, columns, rows, images
    (DType.F16, 128, (64, 4, 3, 1)),  # 128 bytes a row
    (DType.BF16, 64, (64, 10, 7, 1)),
    (DType.U8, 128, (128, 3, 2, 1)),
    (DType.S8, 64, (64, 8, 4, 1)),  # 64 bytes
    (DType.F16, 64, (16, 8, 2, 2)),  # 32 bytes
    (DType.F32, 64, (64, 2, 2, 1)),  # 256 bytes: not swizzled
)
PLACES = ((0, 0, 0, 0), (0, -1, -1, 1), (0, 4, 3, 0))  # inside, over the edge at both ends; a store begins inside


def tensor(pointer: Pointer, element: DType, channels: int, box: tuple[int, ...]) -> TmaDescriptor:
    """A map (N, H, W, channels)."""
    size = element.nbytes
    strides = size * channels, size * channels * W, size * channels * W * H
    return TmaDescriptor(pointer, element, (channels, W, H, N), strides, box)


def cut(x: npt.NDArray[Any], box: tuple[int, ...], place: tuple[int, ...]) -> npt.NDArray[Any]:
    """What lies in a box, zeros outside of the map: (images, rows, columns, channels)."""
    out = np.zeros(box[::-1], x.dtype)
    for index in itertools.product(*(range(size) for size in box[:0:-1])):
        at = tuple(int(i) + first for i, first in zip(index, place[:0:-1], strict=True))
        if all(0 <= i < size for i, size in zip(at, x.shape, strict=False)):
            out[index] = x[at][place[0] : place[0] + box[0]]
    return out


def pasted(box: npt.NDArray[Any], shape: tuple[int, ...], place: tuple[int, ...]) -> npt.NDArray[Any]:
    """A map of poison with a box stored in it, as far as it fits."""
    out = np.full(math.prod(shape) * box.itemsize, POISON, np.uint8).view(box.dtype).reshape(shape)
    corner = tuple(max(first, 0) for first in place[::-1])
    target = out[tuple(slice(first, first + size) for first, size in zip(corner, box.shape, strict=True))]
    target[...] = box[tuple(slice(size) for size in target.shape)]
    return out


def swizzled(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Rows of 128, 64 or 32 bytes in shared memory: pieces of 16 bytes change places, by address bits 7 to 9."""
    width = rows.shape[1]
    flat = rows.reshape(-1)
    if width > 128:
        return flat
    address = np.arange(flat.size)
    moved = address ^ (address >> 7 << 4 & (width - 1 & ~15))
    out = np.empty_like(flat)
    out[moved] = flat
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("element", "channels", "box"), BOXES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_box_goes_through_shared_memory(
    hopper: CudaDevice, element: DType, channels: int, box: tuple[int, ...], place: tuple[int, ...]
) -> None:
    kind = PIXELS[element]
    x = seeded("pixels").integers(1, 250, (N, H, W, channels)).astype(kind)
    expected = cut(x, box, place)
    bench = Bench(hopper)
    inp, error = bench.put(x), bench.put(np.zeros(1, np.int32))
    out, seen = bench.room(x.nbytes), bench.room(expected.nbytes)
    step = KernelLaunch(
        fixture_kernel("round_trip", "tensor_map.cu"),
        Dim3(1),
        Dim3(64),
        (
            *(tensor(inp, element, channels, box), tensor(out, element, channels, box), seen, error),
            *(Scalar(number) for number in (expected.nbytes, *place)),
        ),
        shared=1024 + expected.nbytes,
    )
    bench.run(step)
    assert bench.get(error, (1,), np.int32) == 0
    rows = expected.reshape(-1, box[0]).view(np.uint8)
    np.testing.assert_array_equal(bench.get(seen, (expected.nbytes,), np.uint8), swizzled(rows))
    moved = pasted(expected, x.shape, place)
    np.testing.assert_array_equal(bench.get(out, x.shape, kind).view(np.uint8), moved.view(np.uint8))


@pytest.mark.gpu
def test_the_driver_refuses_what_cannot_be(hopper: CudaDevice) -> None:
    bench = Bench(hopper)
    place = bench.room(64)
    odd = TmaDescriptor(place, DType.F16, (60, 4), (120,), (60, 4))  # strides are multiples of 16 bytes
    arguments = (odd, odd, place, place, *(Scalar(0) for _ in range(5)))
    with pytest.raises(KernelError, match="no tensor map of"):
        bench.run(KernelLaunch(fixture_kernel("round_trip", "tensor_map.cu"), Dim3(1), Dim3(64), arguments))
