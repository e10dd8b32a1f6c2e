"""Photographs to decode: random crops of a few, as JPEG files of 500x375, the same ones wherever these lie."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageOps

from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.synthetic import structured_images

SIZE: Final = (500, 375)  # width, height
QUALITY: Final = 90
SMALLEST: Final = 0.5  # part of the photograph that a crop has across and down
SUBSAMPLINGS: Final = {"4:2:0": 2, "4:2:2": 1, "4:4:4": 0}  # as Pillow counts them
LEAST: Final = 256  # pixels of the shorter side
_PACKAGES: Final = {"sklearn": "datasets/images", "skimage": "data", "matplotlib": "mpl-data/sample_data"}
_SEED: Final = 17


def photographs(folder: Path | None) -> list[Path]:
    """Those of a folder, or those that packages here bring along."""
    places = [folder] if folder else [place for name, part in _PACKAGES.items() if (place := _in_package(name, part))]
    found = [path for place in places for path in sorted(place.iterdir()) if path.suffix.lower() in (".jpg", ".png")]
    return [path for path in found if _is_photograph(path)]


def make(folder: Path, sources: Sequence[Path], count: int) -> dict[str, object]:
    """Write so many files, most of them 4:2:0, every tenth 4:4:4 and 4:2:2 each. Without sources they are drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = usable_cores()
    names = [str(path) for path in sources]
    with ProcessPoolExecutor(workers) as pool:
        shares = [range(share, count, workers) for share in range(workers)]
        sizes = list(pool.map(_write, [folder] * workers, [names] * workers, shares))
    return {
        "count": count,
        "size": list(SIZE),
        "quality": QUALITY,
        "mean_nbytes": sum(sizes) / count,
        "crops_of": [path.name for path in sources] or "drawn pictures with noise",
    }


def subsampling(number: int) -> str:
    """Of the picture with this number."""
    return {0: "4:4:4", 5: "4:2:2"}.get(number % 10, "4:2:0")


def _write(folder: Path, sources: Sequence[str], numbers: range) -> int:
    nbytes = 0
    for number in numbers:
        picture = Image.fromarray(_pixels(tuple(sources), number))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=QUALITY, subsampling=SUBSAMPLINGS[subsampling(number)])
        nbytes += len(file.getvalue())
        (folder / f"{number:05}.jpg").write_bytes(file.getvalue())
    return nbytes


def _pixels(sources: tuple[str, ...], number: int) -> Pixels:
    random = np.random.default_rng((_SEED, number))
    if not sources:
        drawn = np.asarray(Image.fromarray(structured_images(1, 256, _SEED + number)[0]).resize(SIZE), np.int16)
        noisy: Pixels = np.clip(drawn + random.integers(-9, 10, drawn.shape), 0, 255).astype(np.uint8)
        return noisy
    photograph = _opened(sources[number % len(sources)])
    width, height = photograph.size
    across = int(min(width, height * SIZE[0] / SIZE[1]) * random.uniform(SMALLEST, 1))
    down = across * SIZE[1] // SIZE[0]
    left, top = int(random.integers(0, width - across + 1)), int(random.integers(0, height - down + 1))
    crop = photograph.resize(SIZE, Image.Resampling.BICUBIC, (left, top, left + across, top + down))
    pixels = np.asarray(crop, np.uint8)
    return pixels[:, ::-1] if random.integers(2) else pixels


@cache
def _opened(name: str) -> Image.Image:
    with Image.open(name) as file:
        return ImageOps.exif_transpose(file).convert("RGB")


def _is_photograph(path: Path) -> bool:
    """Colours, and not too small: packages have charts and masks beside photographs."""
    try:
        with Image.open(path) as file:
            if file.mode != "RGB" or min(file.size) < LEAST:
                return False
            colours = file.resize((64, 64)).getcolors(4096)
    except OSError:
        return False
    return colours is None or len(colours) > 1000


def _in_package(name: str, part: str) -> Path | None:
    found = find_spec(name)
    places = list(found.submodule_search_locations or ()) if found else []
    place = Path(places[0]) / part if places else None
    return place if place and place.is_dir() else None
