"""Hostile pictures in large numbers: none may crash, hang, open a file, or be other pixels than Pillow decodes.

    python -m tests.fuzz.pictures [--cases N] [--seconds S] [--seed N] [--jobs N] [--output FILE]

Case `number` of a seed is always the same file: a small picture of one of `seeds()`, changed once or a few times, in
its header mostly, and the checksums of PNG mended after that. Worker processes decode each one in colour and in grey,
with simplejpeg where it takes the file and by Pillow alone, which must agree, and resize it by Pillow and by the kernel
on the CPU, which must agree, too. A failed case is kept, as a folder with the file and a report. Exit code 1 when there
is one.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import numpy as np
from PIL import Image

from tests.fuzz.fields import change_bytes
from tests.fuzz.models import Subject, main
from tests.fuzz.worker import (
    CRASH,
    HANG,
    LOADING,
    MAKING,
    OUTSIDE,
    REFUSED,
    WRONG,
    Outcome,
    is_pythons_own,
    opened_files,
    peak_nbytes,
    reason_class,
)
from tests.support.picture_files import encoded, every_kind, exif, jpeg, pixels, with_segment
from vgg16gpu.devices import open_device
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import decode, decode_by_pillow, fitted
from vgg16gpu.pictures.jpeg import NotDecodedError, decode_jpeg, jpeg_shape
from vgg16gpu.pictures.slots import MAX_SIDE, SampleRow, Slot
from vgg16gpu.runtime.answers.fitting import GpuResizer, fit_of

DECODED, AGREES = "decoded by Pillow", "decoded by simplejpeg, as by Pillow"
VERDICTS: Final = (REFUSED, DECODED, AGREES, CRASH, HANG, OUTSIDE, WRONG)
HEADER: Final = 400  # bytes, where most changes are
NAME: Final = "picture"
SIDE: Final = 16  # of the network that they are resized for
LARGE: Final = 1 << 24  # bytes of pixels; a changed number makes such pictures, and more would be taken for a hang
EXTREMES: Final = (
    *(0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF),
    *(0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF),
)


@cache
def seeds() -> Mapping[str, bytes]:
    """Whole files by name: JPEG above all, as it is decoded in two ways."""
    files = {name: data for name, data in every_kind().items() if not name.endswith(".avif")}
    colour = jpeg(40, 56, exif=_exif(), icc_profile=b"profile" * 9, xmp=b'<x tiff:Orientation="1"/>')
    files["annotated.jpg"] = with_segment(colour, 0xED, b"Photoshop 3.0\x008BIM\4\4\0\0\0\0\0\3abc\0")
    files["big-endian.jpg"] = with_segment(jpeg(17, 23), 0xE1, exif(">", (0x0112, 3, 1, b"\0\1\0\0")))
    files["restarts.jpg"] = jpeg(33, 47, restart_marker_blocks=2, subsampling="4:2:2")
    files["fine.jpg"] = jpeg(31, 41, subsampling="4:4:4", quality=95)
    files["grey-progressive.jpg"] = jpeg(40, 24, 1, progressive=True)
    files["bits.png"] = encoded(Image.fromarray(pixels(24, 32)).convert("1"), "PNG")
    files["strips.tif"] = encoded(pixels(24, 32), "TIFF", strip_size=200)
    files["palette.tif"] = encoded(Image.fromarray(pixels(24, 32)).quantize(16), "TIFF")
    return files


def _exif() -> Image.Exif:
    found = Image.Exif()
    found[0x010F], found[0x0112], found[0x011A], found[0x0128] = "a camera", 1, 72.0, 2
    return found


def picture_case(number: int, seed: int = 0) -> tuple[str, bytes]:
    """What case `number` was made of and how, and the file. The first ones are the seeds themselves."""
    random = Random(f"{seed}:{number}")
    name, data = list(seeds().items())[number % len(seeds())]
    changes = []
    if number >= len(seeds()):
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            change = random.choice((_change_header, _change_number, _change_anywhere))
            data, what = change(random, data)
            changes.append(what)
        if name.endswith(".png") and random.random() < 0.8:
            data = _with_checksums(data)
    return ", ".join((name, *changes)), data


def _change_anywhere(random: Random, data: bytes) -> tuple[bytes, str]:
    return change_bytes(random, data)


def _change_header(random: Random, data: bytes) -> tuple[bytes, str]:
    head, what = change_bytes(random, data[:HEADER])
    return head + data[HEADER:], f"header: {what}"


def _change_number(random: Random, data: bytes) -> tuple[bytes, str]:
    """A field of 1, 2 or 4 bytes becomes a number at the edge of what it holds."""
    size = random.choice((1, 2, 2, 4))
    order: Literal["big", "little"] = random.choice(("big", "little"))
    value = (random.choice(EXTREMES) & (1 << 8 * size) - 1).to_bytes(size, order)
    place = random.randrange(min(len(data), HEADER) or 1)
    return data[:place] + value + data[place + size :], f"number of {size} bytes"


def _with_checksums(data: bytes) -> bytes:
    """A PNG file whose chunks have the sums that they should have."""
    mended, place = data[:8], 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">L", data, place)
        end = place + 8 + length
        if end + 4 > len(data):
            break
        mended += data[place:end] + struct.pack(">L", zlib.crc32(data[place + 4 : end]))
        place = end + 4
    return mended + data[place:]


def work(pipe: Connection, state: Any, folder: Path, seed: int, numbers: range) -> None:
    """The life of a worker process: an `Outcome` for each number into the pipe, as in worker.py."""
    del folder
    warnings.simplefilter("ignore")  # of Pillow, of damaged metadata
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libtiff writes there what it finds
    for data in every_kind().values():
        decode(data, NAME, 3)  # now: what is imported then is not opened by a picture
    for number in numbers:
        state[0:4] = number, LOADING, time.monotonic(), time.process_time()
        outcome = examine(number, seed)
        state[1:3] = MAKING, time.monotonic()
        pipe.send((outcome, peak_nbytes()))
    pipe.close()


def examine(number: int, seed: int) -> Outcome:
    """What becomes of a case. Anything but an InputError that names the file is a crash."""
    what, data = picture_case(number, seed)
    for channels in (1, 3):
        _kernel(channels, os.getpid())  # before it is looked at which files are opened
    try:
        with opened_files() as opened:
            outcome = judge(number, data)
        if strange := [path for path in opened if not is_pythons_own(path)]:
            outcome = Outcome(number, OUTSIDE, strange[0], f"opened {', '.join(strange)}")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        outcome = Outcome(number, CRASH, where, traceback.format_exc())
    return Outcome(number, outcome.verdict, outcome.reason, f"{what}\n{outcome.report}" if outcome.report else "")


def judge(number: int, data: bytes) -> Outcome:
    """Decode in every way, and compare."""
    verdict, reason = REFUSED, ""
    for channels in (1, 3):
        found, expected = (_result(read, data, channels) for read in (decode, decode_by_pillow))
        if isinstance(expected, str):
            if not isinstance(found, str):
                return Outcome(number, WRONG, "pixels that Pillow refuses", f"{channels} channels: {expected}")
            if found != expected or not expected.startswith(f"'{NAME}' ") or "\n" in expected:
                return Outcome(number, WRONG, "another message", f"{channels} channels: {found!r}, {expected!r}")
            reason = reason_class(expected.removeprefix(f"'{NAME}' "), Path(NAME))
            continue
        if isinstance(found, str) or not np.array_equal(found, expected):
            return Outcome(number, WRONG, "other pixels", f"{channels} channels: {found!r} instead of {expected!r}")
        verdict, reason = AGREES if verdict == AGREES or _is_fast(data, channels) else DECODED, ""
        if expected.size > LARGE:
            break
        fits = _result(_fitted, data, channels)
        if isinstance(fits, str):
            return Outcome(number, WRONG, "not fitted", fits)
        if max(expected.shape) > MAX_SIDE:  # such pictures do not go to the kernel
            continue
        by_kernel = _kernel(channels, os.getpid())(expected)
        if not np.array_equal(by_kernel, fits):
            told = f"{channels} channels: {by_kernel!r} instead of {fits!r}"
            return Outcome(number, WRONG, "the kernel resizes to other pixels", told)
    return Outcome(number, verdict, reason)


def _fitted(data: bytes, name: str, channels: int) -> Pixels:
    return fitted(data, name, channels, SIDE, SIDE, Preprocess.named("unit", channels))


class Kernel:
    """kernels/layout/resize.cu on the CPU, one picture at a time."""

    def __init__(self, channels: int) -> None:
        fit = fit_of(Preprocess.named("unit", channels), (SIDE, SIDE))
        assert fit is not None
        self._device = open_device("cpu").device
        self._fitter = GpuResizer(self._device, fit, LARGE)

    def __call__(self, pixels: Pixels) -> Pixels:
        height, width, channels = pixels.shape
        slot = Slot(np.ascontiguousarray(pixels).reshape(-1), is_pinned=False, used=pixels.size)
        slot.rows.append(SampleRow(0, 0, NAME, 0, height, width))
        found = np.empty((SIDE, SIDE, channels), np.uint8)
        self._device.copy_out(found.reshape(-1), self._fitter.begin(slot))
        self._device.synchronize()
        self._fitter.end()
        return found


@cache
def _kernel(channels: int, process: int) -> Kernel:
    """That of a process: a device does not outlive a fork."""
    del process
    return Kernel(channels)


def _result(read: Callable[[bytes, str, int], Pixels], data: bytes, channels: int) -> Pixels | str:
    try:
        return read(data, NAME, channels)
    except InputError as error:
        return str(error)


def _is_fast(data: bytes, channels: int) -> bool:
    """Whether simplejpeg decodes it."""
    shape = jpeg_shape(data, channels)
    if shape is None:
        return False
    try:
        decode_jpeg(data, channels, np.empty((*shape, channels), np.uint8))
    except NotDecodedError:
        return False
    return True


def pictures() -> Subject:
    """Picture files, decoded."""
    return Subject(
        "tests.fuzz.pictures",
        (__doc__ or "").splitlines()[0],
        "hostile pictures: decoded with and without simplejpeg, in colour and grey, resized by Pillow and the kernel",
        work,
        lambda number, seed: (picture_case(number, seed)[0], {NAME: picture_case(number, seed)[1]}),
        VERDICTS,
        AGREES,
        ("numpy", "pillow", "simplejpeg"),
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return main(arguments, pictures())


if __name__ == "__main__":
    sys.exit(run())
