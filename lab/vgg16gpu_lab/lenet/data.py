"""What LeNet learns: handwritten digits that ship with the package, or a folder of IDX files such as Fashion-MNIST.

The digits are the 8x8 grey levels of `vgg16gpu.zoo.digits`, here enlarged to 24x24 and framed in black, as MNIST
centres its digits of 20x20 in 28x28. `digits_training.npz` is the part that is not held out there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import followed
from vgg16gpu.io.normalize import Floats, Pixels, normalise
from vgg16gpu.io.shipped import DATA
from vgg16gpu.zoo.digits import DIGITS_LABELS, enlarge
from vgg16gpu_lab.lenet.idx import read_idx

IMAGE: Final = 28  # pixels a side
MOST_IMAGE: Final = 512  # all of them are in memory together
CLASSES: Final = 10

Labels: TypeAlias = npt.NDArray[np.uint8]

_SPELLINGS: Final = ("{}-idx{}-ubyte", "{}.idx{}-ubyte")  # as published, and as some programs unpack it
_CELLS: Final = 8  # a side, of a digit as it ships


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to learn from and others to be asked about: pixels (N, side, side, 1), labels (N,) from 0 to 9."""

    name: str
    training: Pixels
    training_labels: Labels
    heldout: Pixels
    heldout_labels: Labels
    classes: tuple[str, ...] = ()  # names, where they are known

    @property
    def image(self) -> int:
        """Pixels a side."""
        return int(self.training.shape[1])

    @cached_property
    def mean(self) -> float:
        """Mean of the training pixels / 255."""
        return round(float(self.training.mean()) / 255, 4)

    @cached_property
    def std(self) -> float:
        """Standard deviation of the training pixels / 255."""
        return round(max(float(self.training.std()) / 255, 1e-3), 4)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of all that training depends on."""
        total = hashlib.sha256(self.training.data)
        total.update(self.training_labels.data)
        return total.hexdigest()

    def normalised(self, pixels: Pixels) -> Floats:
        """Return (N, side, side, 1) pixels as the net takes them: (N, 1, side, side), (pixel / 255 - mean) / std."""
        return normalise(pixels, (self.mean,), (self.std,))


def digits(image: int = IMAGE) -> Dataset:
    """Return the digits that ship: 1347 to learn from, 450 held out."""
    return Dataset("digits", *_digits("training", image), *_digits("heldout", image), DIGITS_LABELS)


def from_idx(folder: str | Path, image: int = IMAGE) -> Dataset:
    """Read the four IDX files of MNIST or Fashion-MNIST in a folder, gzipped or not; small images get a black frame.

    Raises InputError for a file that is missing or wrong, and for images and labels that do not fit each other.
    """
    folder = Path(folder)
    return Dataset(followed(folder).name, *_from_idx(folder, "train", image), *_from_idx(folder, "t10k", image))


def framed(pixels: Pixels, image: int) -> Pixels:
    """Centre (N, H, W, 1) in (N, image, image, 1), black around. Raises InputError for larger pixels."""
    count, height, width, _ = pixels.shape
    if max(height, width) > image:
        raise InputError(f"images of {height}x{width} do not fit into {image}x{image}; ask for a larger --image")
    whole = np.zeros((count, image, image, 1), np.uint8)
    top, left = (image - height) // 2, (image - width) // 2
    whole[:, top : top + height, left : left + width] = pixels
    return whole


def _digits(part: str, image: int) -> tuple[Pixels, Labels]:
    with np.load(DATA / f"digits_{part}.npz", allow_pickle=False) as file:
        return framed(enlarge(file["images"], max(image // _CELLS, 1) * _CELLS), image), file["labels"]


def _from_idx(folder: Path, part: str, image: int) -> tuple[Pixels, Labels]:
    pixels = read_idx(_find(folder, f"{part}-images", 3), 3)
    labels = read_idx(_find(folder, f"{part}-labels", 1), 1)
    if not 0 < len(pixels) == len(labels):
        raise InputError(f"{folder}: {part} has {len(pixels)} images and {len(labels)} labels; each needs one")
    if labels.max() >= CLASSES:
        raise InputError(f"{folder}: {part} has label {labels.max()}; LeNet tells {CLASSES} classes apart, 0 to 9")
    return framed(pixels[..., None], image), labels


def _find(folder: Path, name: str, dimensions: int) -> Path:
    names = [spelling.format(name, dimensions) + end for spelling in _SPELLINGS for end in ("", ".gz")]
    for candidate in names:
        if (path := folder / candidate).is_file():
            return path
    raise InputError(
        f"{folder}: has no {names[0]} (or .gz); --data takes a folder with Fashion-MNIST's four files, "
        "train-images, train-labels, t10k-images and t10k-labels"
    )
