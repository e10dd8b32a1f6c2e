"""nvJPEG itself, by ctypes: what its batched decoder reaches without nvImageCodec around it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from vgg16gpu.devices.base import Bytes, Foreign
from vgg16gpu.devices.picture_decoder import Place

INTERPOLATION: Final = 1 << 5  # NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION
BACKENDS: Final = {"hardware": 3, "GPU Huffman": 2, "CPU Huffman": 1}  # nvjpegBackend_t
_RGBI: Final = 5  # NVJPEG_OUTPUT_RGBI: channels last
_CHANNELS: Final = 4  # NVJPEG_MAX_COMPONENT


class Setting(NamedTuple):
    """threads: of the processor, for each decoder."""

    backend: str
    flags: int = 0
    threads: int = 1


class _Image(ctypes.Structure):
    """nvjpegImage_t."""

    _fields_ = (("channel", ctypes.c_void_p * _CHANNELS), ("pitch", ctypes.c_size_t * _CHANNELS))


class NvJpeg:
    """One decoder on a stream of its own: `devices.picture_decoder.PictureDecoder`, but a call raises as a whole."""

    def __init__(self, foreign: Foreign, setting: Setting) -> None:
        self._foreign, self._setting, self._size = foreign, setting, 0
        self._library = ctypes.CDLL(str(library()))
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        with foreign.current():
            backend = BACKENDS[setting.backend]
            self._call("CreateEx", backend, None, None, ctypes.c_uint(setting.flags), ctypes.byref(self._handle))
            self._call("JpegStateCreate", self._handle, ctypes.byref(self._state))
        self._stream = ctypes.c_void_p(foreign.open_stream())

    def decode(self, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
        """Decode each file to its place, and wait for that."""
        count = len(files)
        data = (ctypes.c_void_p * count)(*(file.ctypes.data for file in files))
        lengths = (ctypes.c_size_t * count)(*map(len, files))
        images = (_Image * count)()
        for image, place in zip(images, places, strict=True):
            image.channel[0], image.pitch[0] = place.address, 3 * place.width
        with self._foreign.current():
            if count != self._size:
                threads = self._setting.threads
                self._call("DecodeBatchedInitialize", self._handle, self._state, count, threads, _RGBI)
                self._size = count
            self._call("DecodeBatched", self._handle, self._state, data, lengths, images, self._stream)
            self._foreign.finish(int(self._stream.value or 0))
        return [True] * count

    def close(self) -> None:
        """Give everything back."""
        with self._foreign.current():
            self._call("JpegStateDestroy", self._state)
            self._call("Destroy", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, f"nvjpeg{name}")(*arguments):
            raise RuntimeError(f"nvjpeg{name} returns {status}")


def library() -> Path:
    """The library that the package brings. Raises FileNotFoundError."""
    spec = find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*/lib/libnvjpeg.so.*")):
            return path
    raise FileNotFoundError("nvJPEG is not installed: python -m pip install nvidia-nvjpeg")
