"""Results on the device: arrays that other libraries read, and the memory that a caller gives for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import ArrayInterop, CardMemory
from vgg16gpu.devices.cuda import interop
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import OUTPUT_ELEMENTS, DType, TensorDesc, TensorFormat
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.on_device.pending import AsyncStatus
from vgg16gpu.runtime.on_device.runner import ErrorSink
from vgg16gpu.runtime.on_device.views import Stream, StridedView, stream_handle, view_of


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

    def __dlpack_device__(self) -> interop.Device:
        return interop.CUDA, self.device

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
        return interop.wrap(array, self.__dlpack_device__(), is_bfloat=self._form.element is DType.BF16)

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


STORED: Final = "stored"
CHANNELS_LAST: Final = " channels_last"
_ELEMENTS: Final = {name: element for element, name in OUTPUT_ELEMENTS.items()}
FORMS: Final = (STORED, *_ELEMENTS, *(f"{name}{CHANNELS_LAST}" for name in _ELEMENTS))


class RunOptions(NamedTuple):
    """How a run on the device is asked for, as `Engine.run` explains it."""

    stream: Stream = None
    form: str | None = None
    out: Any = None
    wait: bool = True

    def checked(self, foreign: ArrayInterop, pending: AsyncStatus) -> bool:
        """Whether the stream captures. Raises InputError for what does not go together, and what earlier runs left."""
        if self.form is not None and self.out is not None:
            raise InputError("form and out are both given, and arrays of out say which form they want; leave one out")
        if self.wait:
            pending.check()
            pending.prepare()  # the next one may be captured
            return False
        if self.stream is None:
            raise InputError("wait=False returns before the work is done; say on which stream it goes on: stream=...")
        if not foreign.captures(stream_handle(self.stream)):
            pending.begin()
            return False
        if self.out is None or not pending.found:
            raise InputError(
                "the stream captures a CUDA graph, in which nothing can be allocated; give out=..., and run once before"
            )
        pending.capture()
        return True

    def outputs(
        self,
        foreign: ArrayInterop,
        shapes: Sequence[Shape],
        program: LaunchPlan | None,
        pending: AsyncStatus,
        forms: Sequence[TensorFormat] | None = None,
    ) -> tuple[tuple[StridedView, ...], tuple[Any, ...]]:
        """Where each output goes, and what the caller gets for it.

        program: None where `form` is not asked for; `forms` are those of new results then, without them float32.
        Raises InputError and DeviceError.
        """
        if self.out is not None:
            results = tuple(self.out) if isinstance(self.out, list | tuple) else (self.out,)
            return given_outputs(results, shapes, foreign, self.stream), results
        handle = None if self.wait else stream_handle(self.stream)
        allocate = foreign.memory if handle is None else partial(pending.memory, foreign, handle)
        forms = output_forms(self.form, program) if program else forms or [TensorFormat()] * len(shapes)
        made = tuple(DeviceArray(foreign, shape, wanted, allocate) for shape, wanted in zip(shapes, forms, strict=True))
        return tuple(array.view for array in made), made

    def sink(self, pending: AsyncStatus, first: int = 0) -> ErrorSink | None:
        """Return where errors of a run that is not waited for go, which lets NaN and Inf through; None for another."""
        return None if self.wait else ErrorSink(pending.found, first, allows_nonfinite=True)

    def lead(self, foreign: ArrayInterop) -> None:
        """Have the stream wait for what was enqueued, where nobody else has."""
        if not self.wait:
            foreign.lead(stream_handle(self.stream))


def output_forms(asked: str | None, program: LaunchPlan) -> list[TensorFormat]:
    """The form of each output. asked: one of FORMS; None for float32, row-major. Raises InputError."""
    if asked is None:
        return [TensorFormat() for _ in program.outputs]
    if asked not in FORMS:
        raise InputError(f"form {shown(asked)} is not known; accepted: {', '.join(FORMS)}")
    if asked == STORED:
        return [TensorFormat.of(value) for value in program.stored_outputs]
    name = asked.removesuffix(CHANNELS_LAST)
    return [_form(value, _ELEMENTS[name], is_last=name != asked) for value in program.outputs]


def _form(value: TensorDesc, element: DType, *, is_last: bool) -> TensorFormat:
    return TensorFormat(element, value.shape[1] if is_last and len(value.shape) == 4 else None)


def given_outputs(
    arrays: Sequence[Any], shapes: Sequence[Shape], foreign: ArrayInterop, stream: Stream
) -> tuple[StridedView, ...]:
    """The arrays of the caller that outputs go to, one for each. Raises InputError."""
    if len(arrays) != len(shapes):
        raise InputError(f"out has {len(arrays)} arrays; the model has {len(shapes)} outputs: give one for each")
    return tuple(
        _given(array, shape, number, foreign, stream)
        for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    )


def _given(array: Any, shape: Shape, number: int, foreign: ArrayInterop, stream: Stream) -> StridedView:
    where = f"output {number} (counted from 0) of out"
    if not is_on_device(array):
        raise InputError(f"{where} is no array on a GPU, and the input is; give one on cuda:{foreign.ordinal}")
    view = view_of(array, foreign, stream, what=where, waits=stream is None)  # else the input has waited
    if view.shape != shape:
        raise InputError(f"{where} has shape {view.shape}; for this input it is {shape}")
    if view.form is None:
        raise InputError(
            f"{where} is {view.element_type} with strides {view.strides}; give {', '.join(_ELEMENTS)}, contiguous or "
            "channels_last"
        )
    return view
