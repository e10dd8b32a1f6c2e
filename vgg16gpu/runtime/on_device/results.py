"""Where the outputs of a run on the device go, and in which form: arrays that are made, or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import ArrayInterop
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import OUTPUT_ELEMENTS, DType, TensorDesc, TensorFormat
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.on_device.device_array import DeviceArray
from vgg16gpu.runtime.on_device.direct import ErrorSink
from vgg16gpu.runtime.on_device.pending import AsyncStatus
from vgg16gpu.runtime.on_device.views import Stream, StridedView, stream_handle, view_of

STORED: Final = "stored"
CHANNELS_LAST: Final = " channels_last"
_ELEMENTS: Final = {name: element for element, name in OUTPUT_ELEMENTS.items()}
FORMS: Final = (STORED, *_ELEMENTS, *(f"{name}{CHANNELS_LAST}" for name in _ELEMENTS))


@dataclass(frozen=True)
class RunOptions:
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

    def verdict(self, pending: AsyncStatus, first: int = 0) -> ErrorSink | None:
        """What becomes of faults where nobody waits, and NaN and Inf are let through; None for who waits."""
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
