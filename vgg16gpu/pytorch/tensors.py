"""Tensors of torch as an engine takes them: constants, views, checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.autograd import forward_ad

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.runtime.arrays import tensor_fault
from vgg16gpu.runtime.on_device.views import StridedView


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


_TAKEN: Final = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}  # by kernels
TYPES: Final = {name: dtype for dtype, name in _TAKEN.items()}


def taken(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a float32 one in place of what kernels do not read."""
    return tensor.resolve_neg() if tensor.dtype in _TAKEN else tensor.float().resolve_neg()


def is_on_host(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in the CPU's memory, and not on a GPU."""
    return bool(tensor.is_cpu)


def on_host(tensor: torch.Tensor) -> Any:
    """Return the numbers of a tensor on the CPU as a float32 array, row-major."""
    return tensor.detach().float().contiguous().numpy(force=True)  # with the sign that torch may have noted apart


def view(tensor: torch.Tensor) -> StridedView:
    """Where a tensor lies on its card: what DLPack says, several times as fast."""
    return StridedView(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), _TAKEN[tensor.dtype])


_raw_stream: Final[Any] = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without an object for the stream


def current_stream(device: torch.device) -> int:
    """The handle of the stream on which torch works there."""
    if _raw_stream is not None and device.index is not None:
        return int(_raw_stream(device.index))
    return int(torch.cuda.current_stream(device).cuda_stream)


def name_of(device: torch.device) -> str:
    """Return how engines call a device of torch's."""
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"


_STRIDED: Final = torch.strided
_PLAIN: Final = torch.Tensor.__torch_dispatch__  # a class with another one keeps its numbers elsewhere
_FLOATS: Final = frozenset(
    getattr(torch, name)
    for name in (
        *("float32", "float16", "bfloat16", "float64"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    )
)
_PROXY: Final = torch._C._TorchDispatchModeKey.PROXY


def is_traced() -> bool:
    """Return whether torch records calls (compile, export, jit.trace, make_fx): then operators stand for our kernels.

    A call that is not an operator would be recorded as the numbers of that one run.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()  # jit.trace
        or torch._C._get_dispatch_mode(_PROXY) is not None  # make_fx
    )


def is_batched(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether vmap, in its old or new form, stands for several tensors by one of these."""
    functorch = torch._C._functorch
    return any(functorch.is_legacy_batchedtensor(x) or functorch.is_functorch_wrapped_tensor(x) for x in tensors)


def require_recorded(x: object, what: str) -> None:
    """Raise InputError for what no operator of torch takes while it is recorded; the run asks for floats."""
    _require_tensor(x, what)
    if not torch.compiler.is_compiling():
        _require_no_transform(x, what)


def require_floats(x: object, what: str) -> None:
    """Raise InputError for what is not a tensor of floats in plain memory of a CPU or of a GPU with CUDA.

    what: the subject of messages. Tensors inside a transform of torch.func, and with forward-mode derivatives, are
    refused, too: kernels read numbers, and what torch has noted beside them would be lost.
    """
    if not (
        isinstance(x, torch.Tensor)
        and x.layout is _STRIDED
        and not x.is_nested
        and x.dtype in _FLOATS
        and (x.is_cpu or x.is_cuda)
        and type(x).__torch_dispatch__ is _PLAIN
    ):
        _require_tensor(x, what)
        raise InputError(f"{what} {_fault(x)}")
    _require_no_transform(x, what)


def require_one_device(x: torch.Tensor, others: Iterable[torch.Tensor | None]) -> None:
    """Raise InputError for targets or a style that lie on another device than the images x."""
    for other in others:
        if other is not None and other.device != x.device:
            raise InputError(
                f"the images lie on {x.device}, and a target or a style on {other.device}; bring all to one device"
            )


def _require_tensor(x: object, what: str) -> None:
    """Raise InputError for what is not a tensor."""
    if not isinstance(x, torch.Tensor):
        raise InputError(f"{what} is {shown(x)}; give a torch tensor of floats{_conversion(x)}")


def _require_no_transform(x: Any, what: str) -> None:
    """Raise InputError for a tensor that has more to it than its numbers."""
    if torch._C._are_functorch_transforms_active() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise InputError(
            f"{what} is inside a transform of torch.func (grad, vjp, jvp, vmap, ...), which cannot follow our kernels; "
            "use torch.autograd.grad or backward(), and one batch in place of vmap"
        )
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise InputError(
            f"{what} has a tangent of forward-mode differentiation, and derivatives are computed backward; use "
            "torch.autograd.grad or backward()"
        )


def _conversion(x: object) -> str:
    """Return how to make a tensor of what is none, as the end of a message."""
    if isinstance(x, np.ndarray):
        return ": torch.from_numpy(x)"
    if isinstance(x, list | tuple):
        return ": torch.stack(list(x))" if x and isinstance(x[0], torch.Tensor) else ": torch.tensor(x)"
    return ""


def _fault(x: torch.Tensor) -> str:
    """Return what is wrong with a tensor, and what to do, as the end of a message that begins with its name."""
    if found := tensor_fault(x):
        return found
    if x.is_floating_point():
        return f"is {x.dtype}; give float32, float64, float16 or bfloat16"
    way = "x.real or x.abs()" if x.is_complex() else "x.float() / 255" if x.dtype == torch.uint8 else "x.float()"
    return f"is {x.dtype}; give floats, normalised as the model wants it: {way}"
