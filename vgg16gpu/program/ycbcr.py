"""How a picture lies in memory as a JPEG decoder leaves it: luminance and two colours, a plane each.

`sampling`: of the luminance, in units of the colours', as a JPEG file says it (ITU T.81, B.2.2): 0x11 is 4:4:4, 0x21
4:2:2, 0x22 4:2:0. The planes lie one right behind the other; rows begin at multiples of `ROW_ALIGNMENT` bytes.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

Sampling = TypeVar("Sampling", int, npt.NDArray[np.integer[Any]])  # of a picture, or of each of several

ROW_ALIGNMENT: Final = 16  # bytes; a decoder of a GPU writes such rows a third faster


def factors(sampling: Sampling) -> tuple[Sampling, Sampling]:
    """Return (down, across): the pixels of a colour sample."""
    return sampling & 0xF, sampling >> 4


def plane_shapes(height: int, width: int, sampling: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return (rows, columns) of luminance, blue and red."""
    down, across = factors(sampling)
    colour = -(-height // down), -(-width // across)
    return (height, width), colour, colour


def pitch(columns: int) -> int:
    """Return the bytes from a row of a plane to the next."""
    return columns + -columns % ROW_ALIGNMENT


def planes_nbytes(height: int, width: int, sampling: int) -> int:
    """Return the bytes of all three planes."""
    return sum(rows * pitch(columns) for rows, columns in plane_shapes(height, width, sampling))
