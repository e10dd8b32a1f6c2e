"""JPEG decoded on the card by nvJPEG: `devices.picture_decoder`.

nvJPEG gives the planes of a file; interpolating and mixing them is ours (kernels/layout/planes.cu). Its hardware
decoder (A100, H100 and later) has the planes of libjpeg to the bit: a picture then has the same bytes as one that the
CPU decodes. Where there is none, CUDA kernels decode; their cosine transform differs from libjpeg's by at most 1.

A batch of several samplings is slow, four times slower on an H200: so each sampling is a call of its own, with a state
of its own, and all are waited for together.
"""

from __future__ import annotations

import ctypes
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from vgg16gpu.devices.base import ArrayInterop, Bytes
from vgg16gpu.devices.cuda.context import host_address
from vgg16gpu.devices.cuda.probe import probe_driver
from vgg16gpu.devices.picture_decoder import Place
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.ycbcr import pitch, plane_shapes, planes_nbytes

_log = logging.getLogger(__name__)

Library: TypeAlias = Any  # nvJPEG, as ctypes calls it

_PACKAGES: Final = {12: "nvidia-nvjpeg-cu12", 13: "nvidia-nvjpeg"}  # by the major version of CUDA
_YUV: Final = 1  # NVJPEG_OUTPUT_YUV: planes, as they are
_THREADS: Final = 1  # of the processor; nvJPEG no longer asks
_PARTS: Final = range(3)  # of a version: major, minor, patch (libraryPropertyType)
_CHANNELS: Final = 4  # NVJPEG_MAX_COMPONENT
_TRIED: Final = (64, 96)  # (h, w) of the picture that a backend decodes before it is taken
_SAMPLING: Final = 0x22  # of that picture
_FAR: Final = 4.0  # of 255, from libjpeg's luminance in the mean: then it is not the picture's


class DecodeBackend(NamedTuple):
    """A backend. number: as nvjpegBackend_t counts them."""

    name: str
    number: int


WAYS: Final = (DecodeBackend("hardware", 3), DecodeBackend("CUDA", 2))  # the one that has libjpeg's bits first


class _Image(ctypes.Structure):
    """nvjpegImage_t: where planes go, and the bytes from a row of each to the next."""

    _fields_ = (("channel", ctypes.c_void_p * _CHANNELS), ("pitch", ctypes.c_size_t * _CHANNELS))


class _DecodeArguments:
    """What `nvjpegDecodeBatched` takes of files."""

    def __init__(self, files: Sequence[Bytes], places: Sequence[Place]) -> None:
        count = len(files)
        self.data = (ctypes.c_void_p * count)(*map(host_address, files))
        self.lengths = (ctypes.c_size_t * count)(*map(len, files))
        self.images = (_Image * count)()
        for image, place in zip(self.images, places, strict=True):
            _aim(image, place)


def packages_problem() -> str | None:
    """Why the library cannot be loaded, and what installs it; None where it can, whether it works or not."""
    return None if is_installed() else _missing()


def is_installed() -> bool:
    """Return whether the library loads, of a package or of the system; whether it works is found out by `NvJpeg`."""
    return _found()[0] is not None


def install_line() -> str:
    """What installs it, for the CUDA of this machine's driver."""
    driver = probe_driver()
    return f"python -m pip install {_PACKAGES[12 if driver and driver.version[0] == 12 else 13]}"


def load_nvjpeg() -> Library:
    """The library. Raises DeviceError with one line on what is missing and what to do."""
    if (found := _found()[0]) is None:
        raise DeviceError(_missing())
    return found


class NvJpeg:
    """nvJPEG on one card: `devices.picture_decoder.PictureCodec`.

    Tries its backends on a small picture and keeps to the first that works; what was tried is the first `decoder`, as
    making one takes most of a second. Raises DeviceError where none does.
    """

    def __init__(self, library: Library, foreign: ArrayInterop) -> None:
        self._library, self._foreign = library, foreign
        problems = []
        for way in WAYS:
            try:
                self._made: NvJpegDecoder | None = self._tried(way)
                self._way = way
                break
            except DeviceError as error:
                problems.append(f"{way.name}: {error}")
        else:
            raise DeviceError(
                f"nvJPEG {_version(library)} decodes nothing on this GPU ({'; '.join(problems)}); it must go with the "
                f"driver: {install_line()}"
            )
        self.name = f"nvJPEG {_version(library)}, {self._way.name}"

    def decoder(self) -> NvJpegDecoder:
        """A decoder, to be closed before the device. Raises DeviceError where there can be none."""
        made, self._made = self._made, None
        return made or NvJpegDecoder(self._library, self._foreign, self._way)

    def close(self) -> None:
        """Give back what nobody has taken. Safe to call twice."""
        made, self._made = self._made, None
        if made:
            made.close()

    def _tried(self, way: DecodeBackend) -> NvJpegDecoder:
        """A decoder that has decoded a picture; raises DeviceError unless one came out."""
        data, wanted = _sample()
        with ExitStack() as undo:
            decoder = NvJpegDecoder(self._library, self._foreign, way)
            undo.callback(decoder.close)
            memory = self._foreign.memory(planes_nbytes(*_TRIED, _SAMPLING))
            if decoder.decode([np.frombuffer(data, np.uint8)], [Place(memory.address, *_TRIED, _SAMPLING)]) != [True]:
                raise DeviceError("it refuses a JPEG file of the usual kind")
            found = np.empty_like(wanted)  # the first of the planes, whose rows have no gaps
            memory.read(found)
            difference = float(np.abs(found.astype(np.int16) - wanted).mean())
            if not difference <= _FAR:
                raise DeviceError(f"its luminance is {difference:.1f} of 255 from libjpeg's in the mean")
            undo.pop_all()
        return decoder


class NvJpegDecoder:
    """One decoder, on a stream of its own: `devices.picture_decoder.PictureDecoder`."""

    def __init__(self, library: Library, foreign: ArrayInterop, way: DecodeBackend) -> None:
        self._library, self._foreign = library, foreign
        self._handle = ctypes.c_void_p()
        self._states: dict[int, ctypes.c_void_p] = {}  # by sampling
        self._stream = foreign.open_stream()
        with foreign.current():
            self._call("CreateEx", way.number, None, None, ctypes.c_uint(0), ctypes.byref(self._handle))

    def decode(self, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
        """Decode each file to its place, and wait for that; which of them are there.

        Raises KernelError when the device has failed.
        """
        there = [False] * len(files)
        calls = []  # what nvJPEG was given, and may look at until all is done
        with self._foreign.current():
            try:
                for sampling, members in _by_sampling(places):
                    calls.append(_DecodeArguments([files[i] for i in members], [places[i] for i in members]))
                    is_done = self._begin(sampling, calls[-1])
                    for i in members:
                        there[i] = is_done
            finally:
                self._foreign.finish(self._stream)  # the files are read until then, too
        return there

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        states, self._states = self._states, {}
        handle, self._handle = self._handle, ctypes.c_void_p()
        with self._foreign.current():
            for state in states.values():
                self._library.nvjpegJpegStateDestroy(state)
            if handle:
                self._library.nvjpegDestroy(handle)

    def _begin(self, sampling: int, call: _DecodeArguments) -> bool:
        """Enqueue the decoding of files of one sampling; whether nvJPEG takes them all."""
        stream = ctypes.c_void_p(self._stream)
        try:
            state = self._state(sampling)
            self._call("DecodeBatchedInitialize", self._handle, state, len(call.images), _THREADS, _YUV)
            self._call("DecodeBatched", self._handle, state, call.data, call.lengths, call.images, stream)
        except DeviceError as error:  # one of the files is why, most likely; alone, each has its own answer
            _log.debug("%d files are not decoded on the GPU: %s", len(call.images), error)
            return False
        return True

    def _state(self, sampling: int) -> ctypes.c_void_p:
        if sampling not in self._states:
            state = ctypes.c_void_p()
            self._call("JpegStateCreate", self._handle, ctypes.byref(state))
            self._states[sampling] = state
        return self._states[sampling]

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, f"nvjpeg{name}")(*arguments):
            raise DeviceError(f"nvjpeg{name} returns {status}")


def _missing() -> str:
    if problem := _found()[1]:
        return f"nvJPEG, which decodes on GPUs, does not load: {problem}; install it again: {install_line()}"
    return f"nvJPEG, which decodes on GPUs, is not installed: {install_line()}"


def _aim(image: _Image, place: Place) -> None:
    """Have the planes of a picture go to its place."""
    address = place.address
    for plane, (rows, columns) in enumerate(plane_shapes(place.height, place.width, place.sampling)):
        image.channel[plane], image.pitch[plane] = address, pitch(columns)
        address += rows * pitch(columns)


def _by_sampling(places: Sequence[Place]) -> Iterator[tuple[int, list[int]]]:
    """Each sampling with the places that have it."""
    found: dict[int, list[int]] = {}
    for i, place in enumerate(places):
        found.setdefault(place.sampling, []).append(i)
    yield from found.items()


def _sample() -> tuple[bytes, Bytes]:
    """A JPEG file of the usual kind, 4:2:0, and its luminance as libjpeg decodes it."""
    from PIL import Image  # noqa: PLC0415 - who decodes on the CPU alone has no use for it here

    height, width = _TRIED
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * rows // height, 255 * columns // width, 255 - 255 * rows // height], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90, subsampling=2)
    file.seek(0)
    with Image.open(file, formats=["JPEG"]) as picture:
        picture.draft("L", picture.size)
        return file.getvalue(), np.array(picture)


@cache
def _found() -> tuple[Library | None, str]:
    """The library of a package, else that of the system, for the CUDA of the driver; else why a package's fails."""
    problem = ""
    names = _names()
    for name in (*map(str, _packaged(names)), *names):
        try:
            return ctypes.CDLL(name), ""
        except OSError as error:
            problem = problem or (str(error) if Path(name).exists() else "")
    return None, problem


def _names() -> tuple[str, ...]:
    """Of the library, the newest that the driver can have first: one for CUDA 13 does not work with a driver of 12."""
    driver = probe_driver()
    newest = max(_PACKAGES) if driver is None else driver.version[0]
    return tuple(f"libnvjpeg.so.{major}" for major in sorted(_PACKAGES, reverse=True) if major <= newest)


def _packaged(names: Sequence[str]) -> Iterator[Path]:
    """Where packages of NVIDIA's have it."""
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for name in names:
        for folder in folders:
            yield from sorted(Path(folder).glob(f"*/lib/{name}"))


def _version(library: Library) -> str:
    numbers = []
    for part in _PARTS:
        number = ctypes.c_int(-1)
        library.nvjpegGetProperty(part, ctypes.byref(number))
        numbers.append(number.value)
    return ".".join(map(str, numbers))
