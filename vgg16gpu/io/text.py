"""White-space separated numbers: the text form of inputs and scores."""

from __future__ import annotations

import math
import re
import warnings
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import as_utf8

Floats: TypeAlias = npt.NDArray[np.float32]

_BLANKS = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))
_CHUNK = 1 << 20  # bytes
# Digits are never given back: those of a word of a megabyte would be tried in each way.
_NUMBER = re.compile(rb"[+-]?((\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?|nan|inf(inity)?)", re.IGNORECASE)
_SMALLEST_SIDE = 8  # of the image sizes suggested for a file of the wrong length
_SUGGESTIONS = 3


def parse_numbers(text: bytes, name: str) -> Floats:
    """Parse all numbers of `text` into one float32 array.

    Raises InputError naming line and column of the first thing that is not a number.
    """
    body = as_utf8(text, f"'{name}'")
    count = _count_words(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # how numpy before 2.4 reports rubbish
            numbers = np.fromstring(body, dtype=np.float32, sep=" ")
    except (ValueError, DeprecationWarning):
        numbers = np.empty(0, np.float32)
    # The count is needed too: numpy reads "1-2" as two numbers.
    if numbers.size != count:
        raise InputError(f"'{name}' {_first_offender(body)}")
    return numbers


def shape_samples(
    numbers: Floats, shape: tuple[int, ...], name: str, *, open_size: bool = False, channels_last: bool = False
) -> Floats:
    """Cut the numbers into samples, (count, *shape). Raises InputError, with the sizes that would fit, else.

    `open_size` tells whether the model runs at other image sizes, so that --size is worth naming. An image's shape is
    (C, H, W), or (H, W, C) with `channels_last`.
    """
    wanted = math.prod(shape)
    if numbers.size and numbers.size % wanted == 0:
        return numbers.reshape(-1, *shape)
    raise InputError(
        f"'{name}' has {numbers.size} numbers; the model takes {wanted} ({_times(shape)}) or a multiple of that; "
        + _advice(numbers.size, shape, open_size, channels_last)
    )


def fitting_sizes(count: int, channels: int) -> list[tuple[int, int]]:
    """Return (images, side) of square images that `count` numbers would make, fewest images first, at most three."""
    found = []
    for images in range(1, count // (channels * _SMALLEST_SIDE**2) + 1):
        pixels, rest = divmod(count, channels * images)
        if rest == 0 and math.isqrt(pixels) ** 2 == pixels:
            found.append((images, math.isqrt(pixels)))
        if len(found) == _SUGGESTIONS:
            break
    return found


def _advice(count: int, shape: tuple[int, ...], open_size: bool, channels_last: bool) -> str:
    channels = shape[-1 if channels_last else 0]
    sizes = fitting_sizes(count, channels) if len(shape) == 3 else []
    if not sizes:
        return "no square size fits that count; is the file complete?"
    options = []
    for images, side in sizes:
        image = (side, side, channels) if channels_last else (channels, side, side)
        options.append(f"{images} of {_times(image)}" + (f" (--size {side})" if open_size else ""))
    fixed = "" if open_size else "; but the size of this model is fixed"
    return "it would fit " + ", or ".join(options) + fixed


def _count_words(text: bytes) -> int:
    """Return how many words a text has. A list of them would take ten times the memory of the text."""
    count, is_blank = 0, True
    for first in range(0, len(text), _CHUNK):
        blank = _BLANKS[np.frombuffer(text, np.uint8, min(_CHUNK, len(text) - first), first)]
        count += int(np.count_nonzero(blank[:-1] & ~blank[1:])) + int(is_blank and not blank[0])
        is_blank = bool(blank[-1])
    return count


def _first_offender(body: bytes) -> str:
    for number, line in enumerate(body.splitlines(), start=1):
        for token in re.finditer(rb"\S+", line):
            if not _NUMBER.fullmatch(token.group()):
                shown = token.group()[:24].decode("utf-8", "replace")
                more = "..." if len(token.group()) > 24 else ""
                return (
                    f"line {number}, column {token.start() + 1}: {shown!r}{more} is not a number; "
                    "a .txt input holds numbers separated by white space"
                )
    return "could not be read as numbers separated by white space"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
