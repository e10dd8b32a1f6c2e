"""What an input or output is called, holds, and is shaped like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vgg16gpu.compiler.graph.ops import Shape


@dataclass(frozen=True)
class Declared:
    """An input or output as the model declares it. None: a dimension, or a whole shape, that it leaves open.

    `dtype` is None for an output of which the model does not say the element type.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        """Return the form for messages: "input: float32 (N, 3, 224, 224)"."""
        names = ["N", *["?"] * len(self.shape or ())]
        dims = ", ".join(name if dim is None else str(dim) for name, dim in zip(names, self.shape or (), strict=False))
        return f"{self.name}: {self.dtype or 'any type'}{f' ({dims})' if self.shape is not None else ''}"

    @property
    def is_float(self) -> bool:
        """Return whether kernels can compute it, or with it."""
        return self.dtype is None or self.dtype.kind == "f"

    def fits(self, shape: Shape) -> bool:
        """Return whether an array of this shape is meant."""
        declared = self.shape
        return declared is None or (
            len(declared) == len(shape) and all(want in (None, dim) for want, dim in zip(declared, shape, strict=True))
        )
