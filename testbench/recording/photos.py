"""Write photographs to classify: `python testbench/recording/photos.py FOLDER --count 6400`. The same ones each time.

They are cut out of the photographs that scikit-learn and scikit-image ship where these are installed, else out of
pictures that are made: noise whose strength falls with its frequency, as in photographs. Files are as large as asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

SHIPPED: Final = (("sklearn", "datasets/images"), ("skimage", "data"))
MADE: Final = 6  # pictures, where none are shipped
_SIDES: Final = (960, 1280)  # of these, height and width
_LEAST: Final = 300  # pixels: the shorter side of a photograph that is cut
_PART: Final = (0.55, 0.95)  # of its width
_QUALITIES: Final = (92, 88, 95, 84, 97, 78, 98, 70, 60, 99)  # tried in this order
_TOGETHER: Final = 64  # pictures of one call


class Wanted(NamedTuple):
    """How large pictures are, in pixels, and their files, in KB of 1024 bytes."""

    width: int
    height: int
    kilobytes: tuple[float, float]
    mode: str = "RGB"  # "L": grey, for a model of one channel


def main(arguments: Sequence[str] | None = None) -> None:
    """Write them as 000000.jpg, 000001.jpg and so on, by as many processes as there are cores."""
    parser = argparse.ArgumentParser(prog="testbench/recording/photos.py", description="Photographs to classify.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=6400)
    parser.add_argument("--size", default="500x375", help="width x height, in pixels")
    parser.add_argument("--kilobytes", type=float, nargs=2, default=(42.0, 60.0), metavar=("FROM", "TO"))
    parser.add_argument("--grey", action="store_true", help="for a model of one channel")
    options = parser.parse_args(arguments)
    width, height = map(int, options.size.split("x"))
    kilobytes = (options.kilobytes[0], options.kilobytes[1])
    wanted = Wanted(width, height, kilobytes, "L" if options.grey else "RGB")
    options.folder.mkdir(parents=True, exist_ok=True)
    begins = range(0, options.count, _TOGETHER)
    *parts, last = [(options.folder, begin, min(begin + _TOGETHER, options.count), wanted) for begin in begins]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        list(processes.map(_write, parts))
    _write(last)  # when the others are there: its last file tells so


def name_of(number: int) -> str:
    """Of a picture's file."""
    return f"{number:06}.jpg"


def _write(part: tuple[Path, int, int, Wanted]) -> None:
    folder, begin, end, wanted = part
    for number in range(begin, end):
        (folder / name_of(number)).write_bytes(photograph(number, wanted))


def photograph(number: int, wanted: Wanted) -> bytes:
    """A JPEG file: a part of one of the sources, chosen by the number."""
    dice = np.random.default_rng(number)
    source = _sources()[dice.integers(len(_sources()))]
    width = int(source.width * dice.uniform(*_PART))
    height = min(source.height, width * wanted.height // wanted.width)
    width = min(width, height * wanted.width // wanted.height)
    left, top = (int(dice.integers(0, room + 1)) for room in (source.width - width, source.height - height))
    cut = source.crop((left, top, left + width, top + height)).convert(wanted.mode)
    return _encoded(cut.resize((wanted.width, wanted.height), Image.Resampling.BICUBIC), wanted.kilobytes)


def _encoded(picture: Image.Image, kilobytes: tuple[float, float]) -> bytes:
    """In the first quality that gives a file of the wanted size, else in the one that comes nearest."""
    found: list[tuple[float, bytes]] = []
    for quality in _QUALITIES:
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality)
        size = len(stream.getvalue()) / 1024
        found.append((max(kilobytes[0] - size, size - kilobytes[1], 0.0), stream.getvalue()))
        if not found[-1][0]:
            break
    return min(found)[1]


@cache
def _sources() -> tuple[Image.Image, ...]:
    shipped = [picture for path in _shipped() if min((picture := _opened(path)).size) >= _LEAST]
    return tuple(shipped) or tuple(_made(seed) for seed in range(MADE))


def _shipped() -> list[Path]:
    found: list[Path] = []
    for package, place in SHIPPED:
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            folder = Path(spec.origin).parent / place
            found += sorted(path for path in folder.glob("*") if path.suffix in (".jpg", ".png"))
    return found


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _made(seed: int) -> Image.Image:
    """Noise in three colours that have most in common; its strength falls with the frequency."""
    dice = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(_SIDES[0])[:, None], np.fft.rfftfreq(_SIDES[1])[None]
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / max(_SIDES)) ** 1.1
    planes = [np.fft.irfft2(np.fft.rfft2(dice.standard_normal(_SIDES)) * falling, _SIDES) for _ in range(4)]
    common, *colours = (plane / plane.std() for plane in planes)
    pixels = 128 + 48 * common[..., None] + 16 * np.stack(colours, axis=-1)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    main()
