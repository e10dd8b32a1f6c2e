"""The small trained net that ships with the package, and the images that it never saw.

`digits.onnx` is a VGG in miniature (six 3x3 convolutions, three 2x2 pools, two fully connected layers) trained by
models/train_digits.py on scikit-learn's handwritten digits. Its input is (N, 1, 32, 32): a white digit on black,
(pixel / 255 - DIGITS_MEAN) / DIGITS_STD. Its ten outputs are the scores of the digits 0 to 9.

The data are the UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, CC BY 4.0,
https://doi.org/10.24432/C50P49) as scikit-learn ships them: 8x8 grey levels from 0 to 16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.normalize import Floats, Pixels, normalise
from vgg16gpu.io.shipped import DATA

DIGITS_SIZE: Final = 32  # pixels a side
DIGITS_MEAN: Final = (0.305,)
DIGITS_STD: Final = (0.324,)
DIGITS_LABELS: Final = tuple("0123456789")

_LEVELS = 16  # grey levels of the original run from 0 to this


def digit_sample() -> Path:
    """Return the path of one held-out digit, a greyscale PNG of 256x256."""
    return DATA / "digit_sample.png"


def heldout() -> tuple[Pixels, Floats, npt.NDArray[np.int64]]:
    """Return the held-out quarter of the data: images (N, 32, 32, 1), normalised (N, 1, 32, 32), labels (N,)."""
    with np.load(DATA / "digits_heldout.npz", allow_pickle=False) as file:
        images, labels = enlarge(file["images"], DIGITS_SIZE), file["labels"].astype(np.int64)
    return images, normalise(images, DIGITS_MEAN, DIGITS_STD), labels


def enlarge(levels: Pixels, size: int) -> Pixels:
    """Enlarge (N, 8, 8) grey levels 0..16 to (N, size, size, 1) pixels 0..255; `size` a multiple of 8.

    Bilinear with pixel centres aligned and edges repeated, in integers: the same bytes everywhere.
    """
    weights, unit = _bilinear(levels.shape[1], size)
    rows = np.einsum("yr,nrc->nyc", weights, levels.astype(np.int64))
    grid = np.einsum("xc,nyc->nyx", weights, rows)
    scale = unit * unit * _LEVELS
    pixels: Pixels = ((grid * 255 + scale // 2) // scale).astype(np.uint8)
    return pixels[..., None]


def _bilinear(cells: int, size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return integer interpolation weights (size, cells) and the sum of each row."""
    unit = 2 * (size // cells)
    weights = np.zeros((size, cells), np.int64)
    for pixel in range(size):
        left, fraction = divmod(2 * pixel + 1 - unit // 2, unit)
        weights[pixel, max(left, 0)] += unit - fraction
        weights[pixel, min(left + 1, cells - 1)] += fraction
    return weights, unit
