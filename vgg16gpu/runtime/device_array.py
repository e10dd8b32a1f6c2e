"""Arrays on the GPU, from other libraries and for them: the CUDA array interface (versions 2 and 3) and DLPack.

https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.devices.base import Foreign, Memory
from vgg16gpu.devices.cuda import dlpack
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.runtime.frames import Span

Stream: TypeAlias = Any  # a handle, or an object that has one: of torch, CuPy, cuda.core

LEGACY_STREAM: Final = 1  # the default stream, as both interfaces number it, and the driver
_NO_SYNCHRONISATION: Final = -1
_REMEDY = "x.contiguous() in torch, cupy.ascontiguousarray(x) in CuPy"
_PROBLEMS = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)  # of those who make arrays


class SupportsCudaArray(Protocol):
    """What has the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, eq=False)
class DeviceView:
    """Somebody's contiguous array on the card. `owner` keeps its memory alive."""

    address: int
    shape: Shape
    dtype: np.dtype[Any]
    owner: object

    def rows(self, first: int, last: int) -> Span:
        """Where some of its rows lie, as far as there are so many."""
        row_nbytes = self.dtype.itemsize * math.prod(self.shape[1:])
        return Span(self.address + first * row_nbytes, (min(last, self.shape[0]) - first) * row_nbytes)


class DeviceArray:
    """float32 results on the GPU, row-major, for any library that knows the CUDA array interface or DLPack.

    All work on them is done: any stream may use them. The memory goes with the last reference to this object and to
    what was made of it, whether the engine is closed or not.
    """

    dtype: Final = np.dtype(np.float32)

    def __init__(self, foreign: Foreign, shape: Shape) -> None:
        """Allocate. Raises DeviceError when memory runs out."""
        self.shape = shape
        self.device = foreign.ordinal
        self._memory = foreign.memory(max(self.nbytes, 1))  # of no rows, too

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; no stream has to be waited for."""
        return {**_described(self._memory, self.shape), "version": 3, "stream": None}

    def __dlpack_device__(self) -> dlpack.Device:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: object = None,  # no stream has to wait
        max_version: tuple[int, int] | None = None,  # one without a version is always right
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule. Raises BufferError where a copy is asked for."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"this array stays on cuda:{self.device} and makes no copies; copy what you make of it")
        array = np.asarray(_Holder(_described(self._memory, self.shape), self._memory))
        return dlpack.wrap(array, self.__dlpack_device__())

    def numpy(self) -> Array:
        """A copy on the host."""
        copy = np.empty(self.shape, self.dtype)
        self._memory.read(copy)
        return copy

    def row_address(self, first: int) -> int:
        """Where a row begins."""
        return self._memory.address + first * self.dtype.itemsize * math.prod(self.shape[1:])

    def __array__(self, *_: object, **__: object) -> Array:
        raise TypeError("this array lies on the GPU; its numpy() makes a copy on the host")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(float32 {self.shape} on cuda:{self.device})"


class _Holder:
    """Lets numpy describe memory of the GPU by an array whose numbers nobody touches, and which keeps `owner` alive."""

    def __init__(self, interface: Mapping[str, Any], owner: object) -> None:
        self.__array_interface__ = {key: interface.get(key) for key in ("shape", "typestr", "data", "strides")}
        self._owner = owner


def _described(memory: Memory, shape: Shape) -> dict[str, Any]:
    return {"shape": shape, "typestr": DeviceArray.dtype.str, "data": (memory.address, False), "strides": None}


def is_on_device(x: object) -> bool:
    """Whether `x` is an array on a GPU. Those in the host's memory, whatever else they can, are for numpy."""
    if isinstance(x, np.ndarray):
        return False
    if hasattr(x, "__dlpack_device__"):
        return _dlpack_card(x) is not None
    return _has_interface(x)


def view_of(x: Any, foreign: Foreign, stream: Stream = None) -> DeviceView:
    """An array for which `is_on_device` holds, once the compute stream is to wait for what makes it.

    It waits for `stream`; without that, for the stream on which a library with DLPack works now, else for the one that
    the array interface names, else for the legacy default stream.
    Raises InputError for an array that is on another card, not contiguous, or of elements that numpy does not know.
    """
    handle = None if stream is None else stream_handle(stream)
    has_dlpack = hasattr(x, "__dlpack_device__")
    if has_dlpack:
        _require_card(_dlpack_card(x), foreign)
    try:
        if has_dlpack and (handle is None or not _has_interface(x)):
            array, _ = dlpack.unwrap(x.__dlpack__(stream=foreign.stream if handle is None else _NO_SYNCHRONISATION))
        else:
            interface = x.__cuda_array_interface__
            array = _array(interface)
            handle = _named_stream(interface) if handle is None else handle
    except _PROBLEMS as error:
        kind = f"{type(x).__module__}.{type(x).__qualname__} of {getattr(x, 'dtype', 'an unknown element type')}"
        raise InputError(f"the input, {kind} on a GPU, cannot be taken: {error}") from error
    if not array.flags.c_contiguous:
        raise InputError(f"the input of shape {array.shape}, strides {array.strides}, is not contiguous; use {_REMEDY}")
    if array.size:
        _require_card(foreign.card_of(array.ctypes.data), foreign)
    if handle is not None:
        foreign.follow(handle)
    return DeviceView(array.ctypes.data, array.shape, array.dtype, (x, array))


def stream_handle(stream: Stream) -> int:
    """The handle of a stream: a number, or what has `cuda_stream` (torch), `ptr` (CuPy), `__cuda_stream__` (cuda.core).

    Raises InputError for anything else.
    """
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    try:
        return index(stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else stream)
    except (IndexError, TypeError) as error:
        raise InputError(
            f"stream {shown(stream)} is none; give its handle, or an object of torch, CuPy or cuda.core"
        ) from error


def _has_interface(x: object) -> bool:
    try:
        return hasattr(x, "__cuda_array_interface__")
    except RuntimeError:  # torch has it but refuses it to who wants gradients
        return True


def _array(interface: Mapping[str, Any]) -> npt.NDArray[Any]:
    if interface.get("mask") is not None:
        raise ValueError("it is masked; say what stands in the masked places")
    return np.asarray(_Holder(interface, None))


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
    return int(number) if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED) else None


def _require_card(card: int | None, foreign: Foreign) -> None:
    if card == foreign.ordinal:
        return
    if card is None:
        raise InputError("the input says that it lies on a GPU, but its address is none there")
    raise InputError(
        f"the input lies on cuda:{card}, this engine runs on cuda:{foreign.ordinal}; move it there, or build an engine "
        f"with device='cuda:{card}'"
    )
