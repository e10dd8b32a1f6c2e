"""JPEG decoded on the card by nvImageCodec: `devices.picture_decoder`.

By one of its backends alone: their pixels differ in last bits, and which of several took a file would depend on its
neighbours and on the load. That is the hardware decoder where the card has one (A100, H100 and later), which needs
hardly any of the processor; else CUDA kernels, for which the processor undoes the Huffman codes. Both interpolate
colours that are stored coarser than the luminance (`fancy_upsampling`), as libjpeg does: so their pixels are nearest
to its.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from vgg16gpu.devices.base import Bytes, Foreign
from vgg16gpu.devices.cuda.probe import probe_driver
from vgg16gpu.devices.picture_decoder import Place
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import DeviceError

OPTIONS: Final = ":fancy_upsampling=1"
HARDWARE_THREADS: Final = 2  # of the processor for each decoder: they read headers
SHARE: Final = 3  # one part in so many of all cores is what a decoder by CUDA takes

_PACKAGE: Final = "nvidia.nvimgcodec"
_NVJPEG: Final = {12: "nvidia-nvjpeg-cu12", 13: "nvidia-nvjpeg"}  # by the major version of CUDA
_VERBOSITY: Final = "PYNVIMGCODEC_VERBOSITY"
_TRIED: Final = (64, 96)  # (h, w) of the picture that a backend decodes before it is taken
_FAR: Final = 4.0  # of 255, from libjpeg's pixels in the mean: then these are not the picture's

Module: TypeAlias = Any  # nvidia.nvimgcodec, which has no annotations


class Way(NamedTuple):
    """A backend. threads: of the processor, for each decoder."""

    name: str
    kind: str
    threads: int


def ways() -> tuple[Way, ...]:
    """The backends that decode JPEG on a card, the one that leaves most of the processor to others first."""
    share = max(1, usable_cores() // SHARE)
    return Way("hardware", "HW_GPU_ONLY", HARDWARE_THREADS), Way("CUDA", "HYBRID_CPU_GPU", share)


def is_installed() -> bool:
    """Whether the package is there; whether it works is found out by `NvImageCodec`."""
    try:
        return find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:  # no package of NVIDIA's at all
        return False


def packages_problem() -> str | None:
    """What is not installed, and what installs it; None where the package is there, whether it works or not."""
    return None if is_installed() else f"nvImageCodec, which decodes on GPUs, is not installed: {install_line()}"


def install_line() -> str:
    """What installs it, for the CUDA of this machine's driver."""
    driver = probe_driver()
    major = 12 if driver and driver.version[0] == 12 else 13
    return f"python -m pip install nvidia-nvimgcodec-cu{major} {_NVJPEG[major]}"


def load_nvimgcodec() -> Module:
    """The module. Raises DeviceError with one line on what is missing and what to do."""
    if problem := packages_problem():
        raise DeviceError(problem)
    os.environ.setdefault(_VERBOSITY, "0")  # a file that it refuses is no news
    try:
        with _silence():
            return import_module(_PACKAGE)
    except ImportError as error:
        raise DeviceError(f"nvImageCodec does not load: {error}; install it again: {install_line()}") from error


class NvImageCodec:
    """nvImageCodec on one card: `devices.picture_decoder.PictureCodec`.

    Tries its backends on a small picture and keeps to the first that works. Raises DeviceError where none does.
    """

    def __init__(self, module: Module, foreign: Foreign) -> None:
        self._module, self._foreign = module, foreign
        problems = []
        for way in ways():
            try:
                self._way = way
                self._try()
                break
            except DeviceError as error:
                problems.append(f"{way.name}: {error}")
        else:
            raise DeviceError(
                f"nvImageCodec {module.__version__} decodes nothing on this GPU ({'; '.join(problems)}); it and nvJPEG "
                f"must go with the driver: {install_line()}"
            )
        self.name = f"nvImageCodec {module.__version__}, nvJPEG {_nvjpeg_version()}, {self._way.name}"

    def decoder(self) -> NvDecoder:
        """A decoder, to be closed before the device. Raises DeviceError where there can be none."""
        return NvDecoder(self._module, self._foreign, self._way)

    def _try(self) -> None:
        """Raise DeviceError unless a picture comes out."""
        data, wanted = _sample()
        memory, decoder = self._foreign.memory(wanted.nbytes), self.decoder()
        try:
            file = np.frombuffer(data, np.uint8)
            if decoder.decode([file], [Place(memory.address, *_TRIED)]) != [True]:
                raise DeviceError("it refuses a JPEG file of the usual kind")
            found = np.empty_like(wanted)
            memory.read(found)
        finally:
            decoder.close()
        difference = float(np.abs(found.astype(np.int16) - wanted).mean())
        if not difference <= _FAR:
            raise DeviceError(f"its pixels are {difference:.1f} of 255 from libjpeg's in the mean")


class NvDecoder:
    """One decoder, on a stream of its own: `devices.picture_decoder.PictureDecoder`."""

    def __init__(self, module: Module, foreign: Foreign, way: Way) -> None:
        self._module, self._foreign = module, foreign
        try:
            with foreign.current():
                self._params = module.DecodeParams(
                    apply_exif_orientation=False, color_spec=module.ColorSpec.SRGB, allow_any_depth=False
                )
                self._decoder = module.Decoder(
                    device_id=foreign.ordinal,
                    max_num_cpu_threads=way.threads,
                    backends=[module.Backend(getattr(module.BackendKind, way.kind))],
                    options=OPTIONS,
                )
        except (RuntimeError, TypeError, AttributeError) as error:  # of the card; of a version that is too old
            raise DeviceError(str(error)) from error
        self._stream = foreign.open_stream()

    def decode(self, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
        """Decode each file to its place, and wait for that; which of them are there.

        Raises KernelError when the device has failed.
        """
        with self._foreign.current():
            sources = [self._source(file, place) for file, place in zip(files, places, strict=True)]
            taken = [i for i, source in enumerate(sources) if source is not None]
            done = self._decoded([sources[i] for i in taken], [places[i] for i in taken]) if taken else []
            self._foreign.finish(self._stream)  # the files are read until then, too
        there = [False] * len(files)
        for i, is_done in zip(taken, done, strict=True):
            there[i] = is_done
        return there

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        decoder, self._decoder = self._decoder, None
        if decoder is not None:
            with self._foreign.current():
                decoder.__exit__(None, None, None)

    def _source(self, file: Bytes, place: Place) -> Any | None:
        """The file as nvImageCodec reads it; None where it sees no picture of the size that there is room for."""
        try:
            source = self._module.CodeStream(file)
            return source if (source.height, source.width) == (place.height, place.width) else None
        except (RuntimeError, ValueError):
            return None

    def _decoded(self, sources: Sequence[Any], places: Sequence[Place]) -> list[bool]:
        try:
            targets = self._module.as_images([_Target(place) for place in places], cuda_stream=self._stream)
            found = self._decoder.decode(sources, images=targets, params=self._params, cuda_stream=self._stream)
        except (RuntimeError, ValueError):
            return [False] * len(sources)
        return [image is not None for image in found] if len(found) == len(sources) else [False] * len(sources)


class _Target:
    """A place as other libraries see it."""

    def __init__(self, place: Place) -> None:
        self.__cuda_array_interface__ = {
            "shape": (place.height, place.width, 3),
            "typestr": "|u1",
            "data": (place.address, False),
            "strides": None,
            "version": 3,
        }


def _sample() -> tuple[bytes, Bytes]:
    """A JPEG file of the usual kind, and its pixels as libjpeg decodes it."""
    from PIL import Image  # noqa: PLC0415 - who decodes on the CPU alone has no use for it here

    height, width = _TRIED
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * rows // height, 255 * columns // width, 255 - 255 * rows // height], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    file.seek(0)
    with Image.open(file, formats=["JPEG"]) as picture:
        return file.getvalue(), np.array(picture)


def _nvjpeg_version() -> str:
    for name in _NVJPEG.values():
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of the system"


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing reaches the process's stderr: nvImageCodec names there each codec that is not installed."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
