"""Files in pinned memory that decoders of a device turn into pictures: how many a second, and their pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeAlias

import numpy as np

from testbench.measure import decode_photos
from tests.support.libjpeg_colours import planes_in, rgb
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.picture_decoder import PictureDecoder, Place
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.pictures.jpeg_header import read_header
from vgg16gpu.program.ycbcr import planes_nbytes

Made: TypeAlias = Callable[[], PictureDecoder]


class Block:
    """Files in pinned memory, and room for their pictures on the device."""

    def __init__(self, device: Device, data: Sequence[bytes]) -> None:
        self._device = device
        height, width = decode_photos.SIZE[::-1]
        self._nbytes = planes_nbytes(height, width, 0x11)  # as many as any sampling needs
        self._buffer = device.pinned(sum(map(len, data)))
        self._files: list[Bytes] = []
        start = 0
        for each in data:
            self._files.append(self._buffer[start : start + len(each)])
            self._files[-1][:] = np.frombuffer(each, np.uint8)
            start += len(each)
        self._address = device.allocate(len(data) * self._nbytes)
        self._places = [
            Place(self._address + i * self._nbytes, height, width, _sampling(each)) for i, each in enumerate(data)
        ]

    def rate(self, made: Made, batch: int, many: int) -> dict[str, float]:
        """Images a second of so many decoders side by side, files in calls of `batch`; seconds to make the decoders."""
        with ExitStack() as stack:
            start = time.perf_counter()
            decoders = [stack.enter_context(closing(made())) for _ in range(many)]
            for decoder in decoders:
                decoder.decode(self._files[:batch], self._places[:batch])  # it takes its memory
            making = time.perf_counter() - start
            shares = [range(share * batch, len(self._files), many * batch) for share in range(many)]

            def work(decoder: PictureDecoder, starts: Sequence[int]) -> int:
                calls = [slice(start, start + batch) for start in starts]
                return sum(sum(decoder.decode(self._files[call], self._places[call])) for call in calls)

            with ThreadPoolExecutor(many) as pool:
                start = time.perf_counter()
                done = sum(pool.map(work, decoders, shares))
                seconds = time.perf_counter() - start
        if done != len(self._files):
            raise RuntimeError(f"{len(self._files) - done} files were refused")
        return {"images_per_s": done / seconds, "making_s": making}

    def pixels(self, made: Made) -> Iterator[Pixels | None]:
        """Those of each file, made RGB as the kernel does it; None where one was refused."""
        with closing(made()) as decoder:
            for start in range(0, len(self._files), 64):
                places = self._places[start : start + 64]
                taken = decoder.decode(self._files[start : start + 64], places)
                read = np.empty((len(taken), self._nbytes), np.uint8)
                self._device.copy_out(read, places[0].address)
                self._device.synchronize()
                for memory, place, done in zip(read, places, taken, strict=True):
                    kind = place.height, place.width, place.sampling
                    yield rgb(planes_in(memory, *kind), place.sampling) if done else None

    def close(self) -> None:
        """Give memory back."""
        self._device.free(self._address)
        self._device.unpin(self._buffer)


def _sampling(data: bytes) -> int:
    header = read_header(data)
    assert header  # these files are our own
    return header.sampling
