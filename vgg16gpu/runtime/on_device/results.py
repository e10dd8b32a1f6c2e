"""Where the outputs of a run on the device go, and in which form: arrays that are made, or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import Foreign
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.plans import Program
from vgg16gpu.program.values import OUTPUT_ELEMENTS, Element, OutputForm, Value
from vgg16gpu.runtime.on_device.views import DeviceView, Stream, is_on_device, view_of

STORED: Final = "stored"
CHANNELS_LAST: Final = " channels_last"
_ELEMENTS: Final = {name: element for element, name in OUTPUT_ELEMENTS.items()}
FORMS: Final = (STORED, *_ELEMENTS, *(f"{name}{CHANNELS_LAST}" for name in _ELEMENTS))


def output_forms(asked: str | None, program: Program) -> list[OutputForm]:
    """The form of each output. asked: one of FORMS; None for float32, row-major. Raises InputError."""
    if asked is None:
        return [OutputForm() for _ in program.outputs]
    if asked not in FORMS:
        raise InputError(f"form {shown(asked)} is not known; accepted: {', '.join(FORMS)}")
    if asked == STORED:
        return [OutputForm.of(value) for value in program.stored_outputs]
    name = asked.removesuffix(CHANNELS_LAST)
    return [_form(value, _ELEMENTS[name], is_last=name != asked) for value in program.outputs]


def _form(value: Value, element: Element, *, is_last: bool) -> OutputForm:
    return OutputForm(element, value.shape[1] if is_last and len(value.shape) == 4 else None)


def given_outputs(out: Any, shapes: Sequence[Shape], foreign: Foreign, stream: Stream) -> tuple[DeviceView, ...]:
    """The arrays of the caller that outputs go to: one, or a tuple or list of several. Raises InputError."""
    arrays = list(out) if isinstance(out, list | tuple) else [out]
    if len(arrays) != len(shapes):
        raise InputError(f"out has {len(arrays)} arrays; the model has {len(shapes)} outputs: give one for each")
    return tuple(
        _given(array, shape, number, foreign, stream)
        for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    )


def _given(array: Any, shape: Shape, number: int, foreign: Foreign, stream: Stream) -> DeviceView:
    where = f"output {number} (counted from 0) of out"
    if not is_on_device(array):
        raise InputError(f"{where} is no array on a GPU, and the input is; give one on cuda:{foreign.ordinal}")
    view = view_of(array, foreign, stream, what=where)
    if view.shape != shape:
        raise InputError(f"{where} has shape {view.shape}; for this input it is {shape}")
    if view.form is None:
        raise InputError(
            f"{where} is {view.element_type} with strides {view.strides}; give {', '.join(_ELEMENTS)}, contiguous or "
            "channels_last"
        )
    return view
