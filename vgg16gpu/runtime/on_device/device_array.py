"""Results on the GPU, for other libraries: the CUDA array interface (version 3) and DLPack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import ArrayInterop, CardMemory
from vgg16gpu.devices.cuda import dlpack
from vgg16gpu.program.types import OUTPUT_ELEMENTS, DType, TensorFormat
from vgg16gpu.runtime.on_device.views import StridedView


class DeviceArray:
    """A result on the GPU, for any library that knows DLPack or the CUDA array interface.

    float32 and row-major, or in the form that was asked for; of bfloat16 there is no CUDA array interface, as numpy has
    no name for it. All work on it is done, so that any stream may use it, unless it is of a run with `wait=False`. The
    memory goes with the last reference to this object and to what was made of it, whether the engine is closed or not.

    Attributes: `shape` (in the ONNX order, whatever lies where), `strides` (in elements), `element_type` ("float32",
    "float16" or "bfloat16"), `device` (the number of the card).
    """

    def __init__(
        self,
        foreign: ArrayInterop,
        shape: Shape,
        form: TensorFormat | None = None,
        allocate: Callable[[int], CardMemory] | None = None,
    ) -> None:
        """Allocate so many bytes, in the way that is given. Raises DeviceError when memory runs out."""
        self._form = form or TensorFormat()
        self.shape = shape
        self.strides = self._form.strides(shape)
        self.element_type = OUTPUT_ELEMENTS[self._form.element]
        self.device = foreign.ordinal
        self._memory = (allocate or foreign.memory)(max(self.nbytes, 1))  # of no rows, too

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of `numpy()`, and of the array itself but for bfloat16."""
        return np.dtype(np.float16 if self._form.element is DType.F16 else np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._form.element.nbytes * self._form.extent(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; no stream has to be waited for."""
        if self._form.element is DType.BF16:
            raise AttributeError("the CUDA array interface has no bfloat16; take the array by DLPack")
        return {**self._described(), "version": 3, "stream": None}

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
        array = np.asarray(_Holder(self._described(), self._memory))
        return dlpack.wrap(array, self.__dlpack_device__(), is_bfloat=self._form.element is DType.BF16)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host, row-major; of bfloat16 as float32, which is exact."""
        raw = np.empty(self._form.extent(self.shape), self._raw_type)
        self._memory.read(raw)
        if self._form.element is DType.BF16:
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        steps = tuple(raw.itemsize * stride for stride in self.strides)
        return (
            np.ascontiguousarray(np.lib.stride_tricks.as_strided(raw, self.shape, steps))
            if raw.size
            else raw.reshape(self.shape)
        )

    @property
    def view(self) -> StridedView:
        """Where it lies."""
        place = self._memory.address, self.shape, self.strides, self.element_type
        return StridedView(*place, takes_padding=True, owner=self._memory)

    def row_address(self, first: int) -> int:
        """Where a row begins; rows are as long as `strides` says."""
        return self._memory.address + first * self._form.element.nbytes * (self.strides[0] if self.shape else 0)

    def _described(self) -> dict[str, Any]:
        """What both interfaces say, in numpy's words."""
        steps = tuple(self._form.element.nbytes * stride for stride in self.strides)
        is_plain = self.strides == TensorFormat().strides(self.shape)
        place = {"shape": self.shape, "typestr": self._raw_type.str, "data": (self._memory.address, False)}
        return {**place, "strides": None if is_plain else steps}

    @property
    def _raw_type(self) -> np.dtype[Any]:
        return np.dtype(np.uint16) if self._form.element is DType.BF16 else self.dtype

    def __array__(self, *_: object, **__: object) -> npt.NDArray[Any]:
        raise TypeError("this array lies on the GPU; its numpy() makes a copy on the host")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        last = "" if self._form.pitch is None else ", channels last"
        return f"DeviceArray({self.element_type} {self.shape}{last} on cuda:{self.device})"


class _Holder:
    """Lets numpy describe memory of the GPU by an array whose numbers nobody touches, and which keeps `owner` alive."""

    def __init__(self, interface: Mapping[str, Any], owner: object) -> None:
        self.__array_interface__ = {key: interface.get(key) for key in ("shape", "typestr", "data", "strides")}
        self._owner = owner
