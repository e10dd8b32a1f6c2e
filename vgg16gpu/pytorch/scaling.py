"""Images normalised for a network, (x - mean) / std of each channel, by one operator of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from vgg16gpu.errors import InputError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown
from vgg16gpu.pytorch.constants import Constants

_FLOAT32: Final = np.finfo(np.float32)


class Scalings:
    """Normalisations that a loss begins with, by number; -1 is none."""

    def __init__(self, pairs: Sequence[tuple[Sequence[float], Sequence[float]]] = ()) -> None:
        """pairs: mean and standard deviation of each channel."""
        # One rounding each in float32: x * (1 / std) + (-mean / std).
        self._constants = Constants(
            [
                row
                for mean, std in pairs
                for row in ([1 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
            ]
        )
        self.first = 0 if pairs else -1

    def factor(self, index: int, device: torch.device) -> torch.Tensor | None:
        """Return what a gradient is multiplied by on its way through a normalisation; None for 1."""
        return None if index < 0 else self._constants.at(2 * index, device)

    def apply(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Return images normalised, float32 at least; differentiable."""
        if index < 0:
            return x
        return torch.addcmul(self._constants.at(2 * index + 1, x.device), x, self._constants.at(2 * index, x.device))


def scalings_of(mean: Any, std: Any, channels: int | None) -> Scalings:
    """Return the normalisation by a mean and a deviation of each channel, one of which may be None. Raises InputError.

    channels: of the model; None: any number.
    """
    if mean is None and std is None:
        return Scalings()
    vectors = [_vector(name, given, channels) for name, given in (("mean", mean), ("std", std)) if given is not None]
    if len(vectors) == 1:
        vectors.insert(0 if mean is None else 1, [0.0 if mean is None else 1.0] * len(vectors[0]))
    if len(vectors[0]) != len(vectors[1]):
        raise InputError(f"mean has {len(vectors[0])} numbers, and std {len(vectors[1])}; give one for each channel")
    if min(vectors[1]) <= 0:
        raise InputError(f"std is {shown(std)}; give a number above 0 for each channel")
    _require_float32(vectors[0], vectors[1], mean, std)
    return Scalings([(vectors[0], vectors[1])])


def _require_float32(means: list[float], deviations: list[float], mean: object, std: object) -> None:
    """Raise InputError where float32 does not hold what images are multiplied by, or what is added, with all its bits.

    mean, std: as they are given, for messages.
    """
    m, s = np.array(means), np.array(deviations)
    with np.errstate(all="ignore"):  # infinities and zeros are what is looked for
        factors, shifts = (np.array(pair).astype(np.float32) for pair in ((s, 1 / s), (m, m / s)))
    if not (np.isfinite(factors) & (factors >= _FLOAT32.tiny)).all():
        raise InputError(
            f"std is {shown(std)}, and float32 does not hold it and 1 / std; give numbers from 1.2e-38 to 8.5e37, as "
            "(0.229, 0.224, 0.225)"
        )
    if not np.isfinite(shifts).all():
        beside = "" if std is None else f" with std {shown(std)}"
        raise InputError(
            f"mean is {shown(mean)}{beside}, and float32 does not hold it and mean / std; give numbers of the size "
            "that images have, as (0.485, 0.456, 0.406)"
        )


def _vector(name: str, given: Any, channels: int | None) -> list[float]:
    """Return the numbers of each channel. Raises InputError for what are none."""
    found = finite_numbers(given)
    if found is None or found.size == 0 or channels not in (None, found.size):
        wanted = f"{channels} finite numbers" if channels else "a finite number for each channel"
        raise InputError(f"{name} is {shown(given)}; give {wanted}, as (0.485, 0.456, 0.406)")
    return [float(value) for value in found.reshape(-1)]  # BasicSR and others keep them as (1, 3, 1, 1)
