"""Scale gradients of float16 losses, and choose the precision that torch has been asked for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from vgg16gpu.compiler.op_kernels.mma import FIRST_WITH_BFLOAT16, FIRST_WITH_MMA
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown
from vgg16gpu.pytorch.tensors import Constants

TORCH: Final = "torch"
_AUTOCAST: Final = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_FIRST: Final = {"bf16": FIRST_WITH_BFLOAT16, "fp16": FIRST_WITH_MMA}
_get_fp32_precision: Final[Any] = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch 2.9 and later
_fast: dict[tuple[torch.device, str], bool] = {}


def check_precision(precision: object, accepted: tuple[str, ...]) -> None:
    """Raise ModelError for a precision that is neither "torch" nor one of those accepted."""
    if precision != TORCH and precision not in accepted:
        raise ModelError(f"precision {shown(precision)} is not supported; accepted: {', '.join((TORCH, *accepted))}")


def under_autocast(precision: str, device_type: str) -> str:
    """Return the precision, or in place of "torch" that of autocast where it is on for this type of device.

    A compiler reads this while it records: it keeps the state of autocast with the graph. What is left as "torch" is
    for `resolve`, which operators call when they run.
    """
    if precision != TORCH or not torch.is_autocast_enabled(device_type):
        return precision
    return _AUTOCAST.get(torch.get_autocast_dtype(device_type), TORCH)


def chosen(precision: str, asked: str | None, device: torch.device) -> str:
    """Return what a module of this precision computes in on a device: "fp32", "fp16", "bf16" or "int8".

    asked: as `under_autocast` had it when the call came; None: as it is now.
    """
    return precision if precision != TORCH else resolve(asked or under_autocast(TORCH, device.type), device)


def resolve(precision: str, device: torch.device) -> str:
    """Return what to compute in on a device: "fp32", "fp16" or "bf16".

    precision: what `under_autocast` gave for a module of precision "torch". On the CPU that is always "fp32": it has no
    kernels of 16 bits to be faster with. A GPU without tensor cores of 16 bits computes in "fp32", too; one warning
    says so.
    """
    if device.type == "cpu":
        return "fp32"
    if precision == TORCH:
        if not allows_tf32():
            return "fp32"
        precision = "fp16"
    is_fast = _fast.get((device, precision))
    if is_fast is None:
        is_fast = _fast[device, precision] = _is_fast(device, precision)
    return precision if is_fast else "fp32"


def allows_tf32() -> bool:
    """Return whether torch's convolutions may use TF32, by its newer setting where it has one. Nothing warns."""
    if _get_fp32_precision is None:
        return bool(torch._C._get_cudnn_allow_tf32())
    return bool(_get_fp32_precision("cuda", "conv") == "tf32")  # what it inherits included, and allow_tf32


def _is_fast(device: torch.device, precision: str) -> bool:
    """Return whether a GPU has tensor cores for a precision, and warn where it has none."""
    found: bool = torch.cuda.get_device_capability(device) >= _FIRST[precision]
    if not found:
        warnings.warn(
            f"{torch.cuda.get_device_name(device)} has no tensor cores for {precision}, so precision='torch' computes "
            "in fp32 there; precision='fp32' says nothing",
            stacklevel=2,
        )
    return found


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
