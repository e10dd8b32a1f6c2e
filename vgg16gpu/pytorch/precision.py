"""`precision="torch"`: compute in what torch's own convolutions would compute in at the time of the call.

Where autocast is on, that is its type. Elsewhere torch's convolutions of float32 use TF32 on a GPU, unless the user has
forbidden it. Float16 has as many digits as TF32, and factors keep gradients in its range, so "fp16" stands for TF32.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch

from vgg16gpu.compiler.lowering.mma import FIRST_WITH_BFLOAT16, FIRST_WITH_MMA
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import shown

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
