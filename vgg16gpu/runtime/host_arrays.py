"""Arrays of numpy from what a caller gives: lists, tensors of torch on the CPU, and other libraries' arrays."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable, shown

# What libraries raise where one of their arrays cannot become numpy's.
_PROBLEMS: Final = (AttributeError, BufferError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)


def as_array(x: Any, what: str = "the input", wanted: str = "float32, or uint8 pixels") -> npt.NDArray[Any]:
    """Return `x` as an array of numbers in this machine's byte order.

    A tensor of torch may require a gradient, which numpy does not see, and be bfloat16, which becomes float32.
    what: the subject of messages. wanted: element types that they advise. Raises InputError for what is no array of
    numbers, lies on a device, or hides some of its values.
    """
    masked = sys.modules.get("numpy.ma")  # importing it takes time, and who has a masked array has done so
    if masked and isinstance(x, masked.MaskedArray):
        raise InputError(f"{what} is a masked array; say what stands in the masked places: x.filled(value)")
    if isinstance(x, str | bytes | os.PathLike):
        raise InputError(
            f"{what} is {shown(x)}, and an engine takes arrays; vgg16gpu.classify(files, model) reads pictures, and "
            "numpy.load arrays"
        )
    try:
        array = np.asarray(_plain(x))
    except _PROBLEMS as error:
        if is_tensor(x):
            from vgg16gpu.runtime.tensor_faults import tensor_fault  # noqa: PLC0415 - a start without a fault needs none

            if fault := tensor_fault(x):
                raise InputError(f"{what} {fault}") from error
        reason = printable(" ".join(str(error).split())).rstrip(".")
        raise InputError(
            f"{what}, {shown(x)}, is not an array: {reason}; give a dense array of {wanted} in the host's memory"
        ) from error
    if array.dtype.kind not in "biufc":
        raise InputError(f"{what} is {_kind_words(x, array)}; give an array of {wanted}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _plain(x: Any) -> Any:
    """Return a tensor of torch as one that numpy takes, as far as that keeps its numbers; all else as it is."""
    if not is_tensor(x):
        return x
    x = x.detach().resolve_neg()
    return x.float() if str(x.dtype) == "torch.bfloat16" else x


def is_tensor(x: object) -> bool:
    """Return whether `x` is a tensor of torch: who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def _kind_words(x: Any, array: npt.NDArray[Any]) -> str:
    """Return what is given that has no numbers: names of files, pictures, a list of arrays of several shapes."""
    if array.dtype.kind in "US":
        text = shown(array.reshape(-1)[0].item()) if array.size else "without any"
        return f"text ({text}), which vgg16gpu.classify(files, model) reads as files"
    return f"{shown(x)}, an array of {array.dtype} for numpy"
