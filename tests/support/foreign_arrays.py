"""Arrays of other libraries for tests: a card whose memory is the host's or a cpu device's, and arrays on it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.kernel_harness import assert_same_bits
from vgg16gpu import Engine
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda import interop
from vgg16gpu.errors import DeviceError
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.runtime.on_device.results import DeviceArray

SIZE = 16
STREAM = 0x7700


class HostMemory:
    """Memory of the host in the place of a card's."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.address = self.array.ctypes.data

    def read(self, target: Any) -> None:
        target.reshape(-1).view(np.uint8)[:] = self.array[: target.nbytes]


class FakeForeign:
    """A card whose memory is the host's; it notes which streams were waited for."""

    ordinal = 1
    stream = STREAM

    def __init__(self, card: int | None = 1) -> None:
        self.card = card
        self.followed: list[int] = []
        self.led: list[int] = []
        self.capturing = False

    def card_of(self, address: int) -> int | None:
        assert address > 0
        return self.card

    def follow(self, stream: int) -> None:
        self.followed.append(stream)

    def lead(self, stream: int) -> None:
        self.led.append(stream)

    def captures(self, stream: int) -> bool:
        del stream
        return self.capturing

    def memory(self, nbytes: int) -> HostMemory:
        return HostMemory(nbytes)


class ByInterface:
    """An array with the CUDA array interface; `changes` to the interface's keys."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        place = array.__array_interface__
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": place["typestr"],
            "data": place["data"],
            "strides": place["strides"],
            "version": 3,
            "stream": None,
            **changes,
        }


class ByDlpack:
    """An array with DLPack; it notes which streams it was to make wait."""

    def __init__(self, array: Any, kind: int = interop.CUDA, number: int = 1) -> None:
        self.array, self.dtype, self.place = array, array.dtype, (kind, number)
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: Any = None) -> object:
        self.streams.append(stream)
        return interop.wrap(self.array, self.place)


class ByBoth(ByInterface, ByDlpack):
    def __init__(self, array: Any, **changes: Any) -> None:
        ByDlpack.__init__(self, array)
        ByInterface.__init__(self, array, **changes)


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- Engines; on the cpu device memory of its own stands for a card's


class CpuForeign(FakeForeign):
    """A cpu device as the card that others have arrays on."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def memory(self, nbytes: int) -> Any:
        return CpuMemory(self.device, nbytes)


class CpuMemory:
    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.address = device, device.allocate(nbytes)
        self.device.copy_in(self.address, np.full(nbytes, 0xFF, np.uint8))
        device.counters.copies_in -= 1
        weakref.finalize(self, _free, device, self.address).atexit = False

    def read(self, target: Any) -> None:
        self.device.copy_out(target, self.address)
        self.device.counters.copies_out -= 1


def _free(device: Device, address: int) -> None:
    with suppress(DeviceError):  # closed meanwhile
        device.free(address)


@contextmanager
def opened(model: Path, device: Device, **options: Any) -> Iterator[Engine]:
    with Engine(model, device=device.facts.kind, **options) as engine:
        if engine.device.foreign is None:
            engine.device.foreign = CpuForeign(engine.device)  # type: ignore[misc]
        yield engine


class Placed(ByInterface):
    """A copy of an array in memory of a device, `shift` bytes behind where an allocation begins."""

    def __init__(self, device: Device, array: Any, shift: int = 0) -> None:
        address = device.allocate(array.nbytes + shift) + shift
        device.copy_in(address, np.ascontiguousarray(array))
        device.synchronize()
        super().__init__(array, data=(address, False), strides=None)


def read(engine: Any, placed: Placed) -> Any:
    """What is in that memory now."""
    left = np.empty_like(placed.array)
    engine.device.copy_out(left, placed.__cuda_array_interface__["data"][0])
    engine.device.synchronize()
    return left


def pixels(count: int) -> Any:
    return structured_images(count, SIZE, seed=5)


def images(count: int) -> Any:
    return normalise(pixels(count), IMAGENET_MEAN, IMAGENET_STD)


def inputs(element_type: str, count: int) -> Any:
    return images(count) if element_type == "float32" else pixels(count)


def check_same(engine: Engine, x: Any, given: Any, stream: Any = None) -> None:
    """The device's answer is the host's to the last bit, and nothing was copied."""
    expected = engine.run(x)
    before = engine.counters
    y = engine.run(given, stream=stream)
    done = engine.counters.since(before)
    assert (done.copies_in, done.copies_out) == (0, 0)
    assert isinstance(y, DeviceArray)
    assert_same_bits(y.numpy(), expected)
