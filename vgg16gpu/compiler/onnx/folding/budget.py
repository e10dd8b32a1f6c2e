"""How much folding constants may allocate, so that a small file cannot ask for a large array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from vgg16gpu.compiler.onnx.file import Constant

# What folding may allocate: this many bytes, and so many for each byte of constants that it reads.
BASE_MEMORY: Final = 128 << 20
MEMORY_PER_BYTE: Final = 8

# Bytes of constants that repeat one number. The host keeps that number once; a device needs room for all of them.
SPREAD: Final = 1 << 30


class FoldError(ValueError):
    """Constants that cannot be computed; says why."""


@dataclass
class FoldingBudget:
    """Bytes that folding may still allocate, and still spread."""

    left: int = BASE_MEMORY
    spread: int = SPREAD

    def allow(self, array: Constant) -> None:
        """Count the bytes of a constant that is read."""
        self.left += MEMORY_PER_BYTE * array.nbytes

    def take(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Reserve memory for an array. Raises FoldError when the budget is spent."""
        self.left -= math.prod(shape) * dtype.itemsize
        self._check(self.left, shape)

    def repeat(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Count an array of one number, which needs no memory. Raises FoldError if it is too large for a weight."""
        self.spread -= math.prod(shape) * dtype.itemsize
        self._check(self.spread, shape)

    def _check(self, left: int, shape: Sequence[int]) -> None:
        if left < 0:
            raise FoldError(f"a constant of shape {tuple(shape)} takes too much memory")
