"""How often natural images leave the range of fp32 on tensor cores: random crops of photographs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.pictures.inputs import expand_paths
from vgg16gpu.runtime.engine import Engine

BATCH = 32
LARGEST_RATE = 0.01  # of flagged crops
SMALLEST_CROP = 0.25  # of the shorter side
SEED = 4

COLUMNS = ("photographs", "crops", "second passes", "rate", "at most", "most of one photograph")


@dataclass(frozen=True)
class Photographs:
    """Crops of all photographs, and how many of each were run again."""

    crops: int
    flagged: dict[str, int]

    @property
    def rate(self) -> float:
        """The share of crops that were run again."""
        return sum(self.flagged.values()) / self.crops

    @property
    def passed(self) -> bool:
        """Hardly any."""
        return self.rate <= LARGEST_RATE

    def cells(self) -> tuple[object, ...]:
        """A row under COLUMNS."""
        name, most = max(self.flagged.items(), key=lambda item: item[1])
        worst = f"{most} ({name})" if most else "0"
        return (
            len(self.flagged),
            self.crops,
            sum(self.flagged.values()),
            f"{self.rate:.2%}",
            f"{LARGEST_RATE:.0%}",
            worst,
        )


def measure(engine: Engine, folder: Path, at_least: int) -> Photographs:
    """Run at least so many crops, equally many of each photograph. Raises InputError for a folder without images."""
    paths = [Path(name) for name in expand_paths([folder])]
    height, width = engine.program.input.shape[2:]
    each = -(-at_least // len(paths))
    flagged = {}
    for index, path in enumerate(paths):
        before = engine.second_passes
        engine.run(np.stack(list(crops(path, each, (height, width), (SEED, index)))))
        flagged[path.name] = engine.second_passes - before
    return Photographs(each * len(paths), flagged)


def crops(path: Path, count: int, size: tuple[int, int], seed: Sequence[int]) -> Iterator[Pixels]:
    """Random squares of a photograph, resized as `images.py` does to (height, width, 3), half of them mirrored."""
    try:
        with Image.open(path) as file:
            photograph = ImageOps.exif_transpose(file).convert("RGB")
    except OSError as error:
        raise InputError(f"'{path}' is not a readable image: {error}; remove it from the folder") from error
    random = np.random.default_rng(list(seed))
    shorter = min(photograph.size)
    for _ in range(count):
        side = int(random.integers(max(1, round(SMALLEST_CROP * shorter)), shorter + 1))
        left, top = (int(random.integers(0, length - side + 1)) for length in photograph.size)
        crop = photograph.resize(size[::-1], Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        pixels = np.asarray(crop, np.uint8)
        yield pixels[:, ::-1] if random.integers(2) else pixels
