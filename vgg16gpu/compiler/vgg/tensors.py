"""Float32 arrays from the values of a state dict: numpy arrays, torch's tensors, tensors of a .safetensors file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.vgg.forms import loaded_torch
from vgg16gpu.compiler.vgg.safetensors import StoredTensor
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import shown

Floats = npt.NDArray[np.float32]

_ACCEPTED = "floating-point numpy arrays or torch tensors are accepted"


def is_tensor(value: Any) -> bool:
    """Return whether a value of a mapping is a tensor of some kind: one that has a shape, and is not a number."""
    torch = loaded_torch()
    return isinstance(value, np.ndarray | StoredTensor) or (torch is not None and isinstance(value, torch.Tensor))


def floats_of(name: str, value: Any) -> Floats:
    """Return a tensor as a C-contiguous float32 array: a view where it is one on the host, else a copy.

    Other floating-point types are rounded to float32 as torch's `.float()` does. Raises ModelError, which names the
    tensor, for one of other numbers, and one without values of its own (sparse, quantised, on the device "meta").
    """
    if isinstance(value, StoredTensor):
        found = value.floats()
        if found is None:
            raise ModelError(f"tensor '{name}' has element type {value.dtype}; F64, F32, F16 and BF16 are accepted")
        return found
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            raise ModelError(f"tensor '{name}' is {shown(value)}; {_ACCEPTED}")
        with np.errstate(over="ignore", under="ignore"):
            return np.ascontiguousarray(value, "<f4")
    return _floats_of_torch(name, value)


def _floats_of_torch(name: str, value: Any) -> Floats:
    torch = loaded_torch()
    is_dense = value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"
    if not value.is_floating_point() or not is_dense:
        raise ModelError(f"tensor '{name}' is {value.dtype}, {value.layout}, on {value.device}; {_ACCEPTED}")
    try:
        found: Floats = value.detach().to("cpu", torch.float32).contiguous().numpy()
    except (RuntimeError, NotImplementedError, TypeError) as error:  # of subclasses without values: fake, batched
        raise ModelError(f"tensor '{name}' has no values ({_first_line(error)}); {_ACCEPTED}") from error
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
