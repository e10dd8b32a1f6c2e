"""nvJPEG without a GPU: what vgg16gpu.devices.cuda.nvjpeg calls of it, decoding by Pillow to planes on the host.

Its luminance is a little brighter than libjpeg's (`shift`), so that one sees who has decoded a file.
"""

from __future__ import annotations

import ctypes
import io
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.support.libjpeg_colours import Planes, planes_of, rgb
from vgg16gpu.devices.cuda.nvjpeg import WAYS
from vgg16gpu.pictures.jpeg_header import read_header
from vgg16gpu.program.ycbcr import pitch, plane_shapes

Pixels = npt.NDArray[np.uint8]

SHIFT = 3  # of 255
NUMBERS = {way.name: way.number for way in WAYS}
BAD_JPEG, NOT_SUPPORTED = 3, 9  # nvjpegStatus_t


def faded_planes(data: bytes, shift: int = SHIFT) -> Planes:
    """The planes of a JPEG file, as it is decoded here."""
    header = read_header(data)
    assert header
    y, cb, cr = planes_of(data, header.sampling)
    return np.minimum(y, 255 - shift) + np.uint8(shift), cb, cr


def pixels_of(data: bytes, shift: int = SHIFT) -> Pixels:
    """(h, w, 3) of a JPEG file, as it is decoded here and made RGB as libjpeg does it."""
    header = read_header(bytes(data))
    assert header
    return rgb(faded_planes(bytes(data), shift), header.sampling)


def aligned_bytes(nbytes: int) -> Pixels:
    """Zeros from a multiple of 16 bytes on, as memory of a card is."""
    found = np.zeros(nbytes + 15, np.uint8)
    start = -found.ctypes.data % 16
    return found[start : start + nbytes]


class FakeForeign:
    """A card that is the host."""

    ordinal = 0

    def __init__(self) -> None:
        self.streams = 0
        self.finished: list[int] = []

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def open_stream(self) -> int:
        self.streams += 1
        return 1000 + self.streams

    def finish(self, stream: int) -> None:
        assert stream > 1000
        self.finished.append(stream)

    def memory(self, nbytes: int) -> Any:
        held = aligned_bytes(nbytes)

        def read(target: Pixels) -> None:
            target.reshape(-1)[:] = held[: target.size]

        return SimpleNamespace(address=held.ctypes.data, read=read)


class FakeLibrary:
    """The library, as ctypes calls it.

    works: names of backends that there are. refuses(data): which files make their whole batch fail. wrong_pixels: what
    comes out is another picture. calls: the number of files of each. open: handles and states that are not destroyed.
    """

    def __init__(
        self,
        works: tuple[str, ...] = ("hardware", "CUDA"),
        refuses: Callable[[bytes], Any] | None = None,
        *,
        wrong_pixels: bool = False,
        shift: int = SHIFT,
        seconds: float = 0.0,
    ) -> None:
        self.works, self.wrong_pixels, self.shift, self.seconds = works, wrong_pixels, shift, seconds
        self.refuses = refuses or (lambda _: False)
        self.calls: list[int] = []
        self.samplings: list[set[int]] = []
        self.open = self.at_once = self.most_at_once = 0
        self.sizes: dict[int, int] = {}  # of the batch that a state is made for
        self.lock = threading.Lock()

    def nvjpegGetProperty(self, part: int, number: Any) -> int:  # noqa: N802
        number._obj.value = (0, 0, 1)[part]
        return 0

    def nvjpegCreateEx(self, backend: int, device: None, pinned: None, flags: Any, handle: Any) -> int:  # noqa: N802
        assert (device, pinned, flags.value) == (None, None, 0)
        if backend not in [NUMBERS[name] for name in self.works]:
            return NOT_SUPPORTED
        return self._made(handle)

    def nvjpegJpegStateCreate(self, handle: Any, state: Any) -> int:  # noqa: N802
        assert handle.value
        return self._made(state)

    def nvjpegDestroy(self, handle: Any) -> int:  # noqa: N802
        return self._destroyed(handle)

    def nvjpegJpegStateDestroy(self, state: Any) -> int:  # noqa: N802
        return self._destroyed(state)

    def nvjpegDecodeBatchedInitialize(self, handle: Any, state: Any, count: int, threads: int, form: int) -> int:  # noqa: N802
        assert (bool(handle.value), threads, form) == (True, 1, 1)
        self.sizes[state.value] = count
        return 0

    def nvjpegDecodeBatched(self, handle: Any, state: Any, data: Any, lengths: Any, images: Any, stream: Any) -> int:  # noqa: N802
        count = self.sizes[state.value]
        assert handle.value
        assert stream.value > 1000
        assert len(data) == len(lengths) == len(images) == count
        with self.lock:
            self.calls.append(count)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.seconds)
        try:
            files = [ctypes.string_at(start, length) for start, length in zip(data, lengths, strict=True)]
            self.samplings.append({header.sampling for header in map(read_header, files) if header})
            if not all(map(self._is_fine, files)):
                return BAD_JPEG
            for file, image in zip(files, images, strict=True):
                self._write(file, image)
            return 0
        finally:
            with self.lock:
                self.at_once -= 1

    def _is_fine(self, data: bytes) -> bool:
        try:
            with Image.open(io.BytesIO(data), formats=["JPEG"]):
                return not self.refuses(data)
        except OSError:
            return False

    def _write(self, data: bytes, image: Any) -> None:
        header = read_header(data)
        assert header
        planes = faded_planes(data, self.shift)
        if self.wrong_pixels:
            planes = tuple(255 - plane for plane in planes)
        shapes = plane_shapes(header.height, header.width, header.sampling)
        for number, (plane, (rows, columns)) in enumerate(zip(planes, shapes, strict=True)):
            assert (plane.shape, image.pitch[number]) == ((rows, columns), pitch(columns))
            assert image.channel[number] % 16 == 0
            place = (ctypes.c_uint8 * (rows * pitch(columns))).from_address(image.channel[number])
            np.frombuffer(place, np.uint8).reshape(rows, -1)[:, :columns] = plane

    def _made(self, place: Any) -> int:
        with self.lock:
            self.open += 1
            place._obj.value = 0x1000 + len(self.sizes)
            self.sizes[place._obj.value] = 0
        return 0

    def _destroyed(self, thing: Any) -> int:
        assert thing.value in self.sizes
        with self.lock:
            self.open -= 1
        return 0
