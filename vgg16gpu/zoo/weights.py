"""Random weights that are the same bits on every machine, with every numpy.

numpy promises the raw output of PCG64 for ever, but not its distributions. So a weight is an integer made of one raw
64-bit word (the sum of its four 16-bit parts, which is nearly normal), times a float32: one rounding, the same
everywhere.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int32]

LIMIT: Final = 2 * 0xFFFF  # |integer| <= LIMIT
SIGMA: Final = math.sqrt((2**32 - 1) / 3)  # standard deviation of the integers

_PARTS = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)
_CHUNK = 1 << 16  # words at a time: they stay in the cache


class IntegerStream:
    """A stream of integers in [-LIMIT, LIMIT], nearly normal, mean 0, standard deviation SIGMA."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def integers(self, shape: tuple[int, ...]) -> Integers:
        """The next integers of the stream, in row-major order."""
        out = np.empty(math.prod(shape), np.int32)
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            words = self._bits.random_raw(part.size)
            pairs = (words & _PARTS) + (words >> np.uint64(16) & _PARTS)
            part[:] = ((pairs & _LOW) + (pairs >> np.uint64(32))).astype(np.int32) - LIMIT
        return out.reshape(shape)


def he_scale(fan_in: int) -> np.float32:
    """What turns integers into weights of variance 2 / fan_in (He et al. 2015)."""
    return np.float32(math.sqrt(2 / fan_in) / SIGMA)


def scaled(integers: Integers, scale: np.float32) -> npt.NDArray[np.float32]:
    """The product as float32; the integers are exact in float32."""
    return integers.astype(np.float32) * scale
