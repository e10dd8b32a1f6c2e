"""Vectors of a module as tensors on each device, which are no state of the module: nothing rounds or stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from vgg16gpu.pytorch.tensors import is_traced


class Constants:
    """Vectors with a number for each channel as float32 tensors (1, C, 1, 1), made once on each device.

    A copy, also one by pickle, has the numbers and makes tensors of its own.
    """

    def __init__(self, vectors: Sequence[Sequence[float]]) -> None:
        self.vectors: Final = tuple(tuple(map(float, vector)) for vector in vectors)
        self._made: dict[tuple[int, torch.device], torch.Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.vectors,)

    def at(self, index: int, device: torch.device) -> torch.Tensor:
        """Return a vector on a device. While torch records, one that is not there is recorded as its numbers."""
        found = self._made.get((index, device))
        if found is None:
            if is_traced():
                return self._tensor(index, device)
            with torch.inference_mode(mode=False):  # it may be needed for gradients later
                found = self._made[index, device] = self._tensor(index, device)
        return found

    def _tensor(self, index: int, device: torch.device) -> torch.Tensor:
        return torch.tensor(self.vectors[index], dtype=torch.float32, device=device).view(1, -1, 1, 1)
