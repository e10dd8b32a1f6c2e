"""Arrays of other libraries on the GPU, as they lie there: the CUDA array interface (versions 2 and 3) and DLPack.

https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import ArrayInterop
from vgg16gpu.devices.cuda import interop
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import DType, TensorFormat

Stream: TypeAlias = Any  # a handle, or an object that has one: of torch, CuPy, cuda.core

LEGACY_STREAM: Final = 1  # the default stream, as both interfaces number it, and the driver
ELEMENTS: Final = {
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "uint8": DType.U8,
}  # what kernels read
_INPUT_TYPES: Final = {name: np.dtype("uint8" if name == "uint8" else "float32") for name in ELEMENTS}
_NO_SYNCHRONISATION: Final = -1
_PROBLEMS = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)  # of those who make arrays


class SupportsCudaArray(Protocol):
    """What has the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class StridedView:
    """An array on the card, strides in elements; equal if the place is. `owner` keeps its memory alive.

    takes_padding: what lies between its elements may be written, too.
    """

    address: int
    shape: Shape
    strides: tuple[int, ...]
    element_type: str
    takes_padding: bool = False
    owner: object = field(default=None, compare=False, repr=False)

    @property
    def input_type(self) -> np.dtype[Any]:
        """What it is for a model: every float of 16 bits is a float32."""
        return _INPUT_TYPES.get(self.element_type) or np.dtype(self.element_type)

    @property
    def element(self) -> DType:
        """What the kernels read."""
        return ELEMENTS[self.element_type]

    def rows(self, first: int, last: int) -> StridedView:
        """Some of its rows, as far as there are so many."""
        if first == 0 and last >= self.shape[0]:
            return self
        address = self.address + first * self.strides[0] * self.element.nbytes
        return replace(self, address=address, shape=(min(last, self.shape[0]) - first, *self.shape[1:]))

    @property
    def place(self) -> Hashable:
        """What tells places apart: all but the owner."""
        return self.address, self.shape, self.strides, self.element_type, self.takes_padding

    def permuted(self, order: Sequence[int]) -> StridedView:
        """The same elements; dimension i is dimension order[i] of this one."""
        shape, strides = (tuple(row[dim] for dim in order) for row in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    @property
    def form(self) -> TensorFormat | None:
        """The form of an output that is to lie here; None where strides or elements are those of no form."""
        return _form(self.element_type, self.shape, self.strides)


@lru_cache(maxsize=1024)
def _form(element_type: str, shape: Shape, strides: tuple[int, ...]) -> TensorFormat | None:
    element = ELEMENTS.get(element_type)
    if element is None or element is DType.U8:
        return None
    for form in (TensorFormat(element), TensorFormat(element, _pitch(shape, strides))):
        triples = zip(shape, strides, form.strides(shape), strict=True)
        if all(dim <= 1 or stride == wanted for dim, stride, wanted in triples):
            return form
    return None


def _pitch(shape: Shape, strides: tuple[int, ...]) -> int | None:
    """From one pixel, or row, to the next, if channels lie last."""
    if len(shape) not in (2, 4):
        return None
    steps = [strides[dim] for dim in (*range(len(shape) - 1, 1, -1), 0) if shape[dim] > 1]
    pitch = steps[0] if steps else shape[1]
    return pitch if pitch >= shape[1] else None


def lies_on_device(x: object) -> bool:
    """Return whether something that is no array of numpy is an array on a GPU."""
    if isinstance(x, StridedView) or getattr(x, "is_cuda", False) is True:  # torch's tensors say so at once
        return True
    if hasattr(x, "__dlpack_device__"):
        return _dlpack_card(x) is not None
    return _has_interface(x)


def view_of(
    x: Any, foreign: ArrayInterop, stream: Stream = None, *, what: str = "the input", waits: bool = True
) -> StridedView:
    """An array for which `is_on_device` holds, once the compute stream is to wait for what makes it.

    It waits for `stream`; without that, for the stream on which a library with DLPack works now, else for the one that
    the array interface names, else for the legacy default stream. what: how messages call it. waits: False where it
    waits for `stream` already. A `StridedView` is taken as it is: who made it knows. Raises InputError for an array
    that is on another card, or that nobody can describe.
    """
    handle = None if stream is None else stream_handle(stream)
    if isinstance(x, StridedView):
        if handle is not None and waits:
            foreign.follow(handle)
        return x
    if (view := _of_torch(x)) is not None:
        _require_card(x.get_device(), foreign, what)
        if waits:
            foreign.follow(_torch_stream(x) if handle is None else handle)
        return view
    if getattr(x, "requires_grad", False) is True:
        x = x.detach()  # torch hands out nothing that wants gradients
    has_dlpack = hasattr(x, "__dlpack_device__")
    if has_dlpack:
        _require_card(_dlpack_card(x), foreign, what)
    try:
        if has_dlpack:
            view = _by_dlpack(x, foreign.stream if handle is None else _NO_SYNCHRONISATION)
        else:
            view = _by_interface(x)
            handle = _named_stream(x.__cuda_array_interface__) if handle is None else handle
    except _PROBLEMS as error:
        kind = f"{type(x).__module__}.{type(x).__qualname__} of {getattr(x, 'dtype', 'an unknown element type')}"
        raise InputError(f"{what}, {kind} on a GPU, cannot be taken: {error}") from error
    if 0 not in view.shape:
        _require_card(foreign.card_of(view.address), foreign, what)
    if handle is not None and waits:
        foreign.follow(handle)
    return view


def stream_handle(stream: Stream) -> int:
    """The handle of a stream: a number, or what has `cuda_stream` (torch), `ptr` (CuPy), `__cuda_stream__` (cuda.core).

    Raises InputError for anything else.
    """
    if type(stream) is int:
        return stream
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    try:
        return index(stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else stream)
    except (IndexError, TypeError) as error:
        raise InputError(
            f"stream {shown(stream)} is none; give its handle, or an object of torch, CuPy or cuda.core"
        ) from error


def _of_torch(x: Any) -> StridedView | None:
    """Return a dense tensor of torch on a GPU as DLPack has it, in a small part of the time; None for anything else."""
    if getattr(x, "is_cuda", False) is not True or (torch := sys.modules.get("torch")) is None:
        return None
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided or x.is_neg():
        return None
    element_type = str(x.dtype).removeprefix("torch.")
    if element_type not in ELEMENTS:
        return None
    try:
        return StridedView(x.data_ptr(), tuple(x.shape), x.stride(), element_type, owner=x)
    except RuntimeError:  # one that stands for others, inside of a transform
        return None


def _torch_stream(x: Any) -> int:
    """Return the handle of the stream on which torch works on the card of a tensor."""
    return int(sys.modules["torch"].cuda.current_stream(x.device).cuda_stream)


def _by_dlpack(x: Any, stream: int) -> StridedView:
    capsule = x.__dlpack__(stream=stream)
    found = interop.describe(capsule)
    if found.element_type not in ELEMENTS:
        np.dtype(found.element_type)  # raises TypeError for what nobody here has a name for
    return StridedView(found.address, found.shape, found.strides, found.element_type, owner=(x, capsule))


def _by_interface(x: SupportsCudaArray) -> StridedView:
    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ValueError("it is masked; say what stands in the masked places")
    dtype, shape = np.dtype(interface["typestr"]), tuple(map(index, interface["shape"]))
    if not dtype.isnative:
        raise ValueError(f"its elements are {dtype.str}, in another byte order than this machine's")
    strides = interface.get("strides")
    steps = TensorFormat().strides(shape) if strides is None else tuple(step // dtype.itemsize for step in strides)
    if strides is not None and any(step % dtype.itemsize for step in strides):
        raise ValueError(f"its strides {tuple(strides)} are not whole elements")
    return StridedView(index(interface["data"][0]), shape, steps, dtype.name, owner=x)


def _has_interface(x: object) -> bool:
    try:
        return hasattr(x, "__cuda_array_interface__")
    except RuntimeError:  # torch has it but refuses it to who wants gradients
        return True


def _named_stream(interface: Mapping[str, Any]) -> int | None:
    """The stream to wait for: version 3 names it, or says by None that there is none."""
    if interface.get("version", 0) < 3:
        return LEGACY_STREAM
    named = interface.get("stream")
    return None if named is None else index(named)


def _dlpack_card(x: Any) -> int | None:
    """The number of the card on which an array with DLPack lies; None if it is on none."""
    try:
        kind, number = x.__dlpack_device__()
    except _PROBLEMS:
        return None
    return int(number) if kind in (interop.CUDA, interop.CUDA_MANAGED) else None


def _require_card(card: int | None, foreign: ArrayInterop, what: str) -> None:
    if card == foreign.ordinal:
        return
    if card is None:
        raise InputError(f"{what} says that it lies on a GPU, but its address is none there")
    raise InputError(
        f"{what} lies on cuda:{card}, this engine runs on cuda:{foreign.ordinal}; move it there, or build an engine "
        f"with device='cuda:{card}'"
    )
