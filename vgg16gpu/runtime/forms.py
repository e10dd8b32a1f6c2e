"""What an engine takes: arrays of these element types and shapes. All else is refused, with a word on what to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import GraphInput, Shape
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.program.plans import Program
from vgg16gpu.runtime import device_array
from vgg16gpu.runtime.stored import image_shape

Images: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
Input: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]


@dataclass(frozen=True)
class InputForm:
    """The one input of an engine: how a caller gives it.

    accepted: the shape of one sample, by element type. whole: by its name, the shape of the first output that has no
    row for each image, if there is one.
    """

    given: GraphInput
    accepted: Mapping[np.dtype[Any], Shape]
    whole: tuple[str, Shape] | None

    @classmethod
    def of(cls, given: GraphInput, program: Program) -> InputForm:
        """That of a program and of its input as the file has it."""
        shapes = {name: _as_given(name, given, program.input.shape) for name in program.input.entries}
        whole = next(((y.name, y.shape) for y in program.outputs if program.is_whole(y)), None)
        return cls(given, {np.dtype(name): shape[1:] for name, shape in shapes.items()}, whole)

    def only(self, x: Any) -> Any:
        """The array itself, which may come in a dict from the input's name."""
        if isinstance(x, Mapping):
            if set(x) != {self.given.name}:
                raise InputError(f"inputs {shown(sorted(map(str, x)))}: this model has one input, '{self.given.name}'")
            return x[self.given.name]
        return x

    def checked(self, x: Input) -> Images:
        """An array on the host in the order that the kernels read. Raises InputError."""
        images = _as_array(self.only(x))
        if images.dtype == np.float16:
            images = images.astype(np.float32)  # exact
        self.check(images.dtype, images.shape, "x.astype(np.float32)")
        return self.given.from_file(images) if images.dtype == np.float32 else images

    def checked_or_foreign(self, x: Any) -> Any:
        """The same, of an item of a stream; an array on the GPU as it is, for who runs it to check."""
        given = self.only(x)
        return given if device_array.is_on_device(given) else self.checked(given)

    def check(self, dtype: np.dtype[Any], shape: Shape, conversion: str) -> None:
        """Raise InputError for an element type or shape that is not taken; `conversion`: how to mend the type."""
        expected = self.accepted
        if shape[1:] != expected.get(dtype) or not shape or shape[0] == 0:
            accepted = " or ".join(f"{name} (N, {', '.join(map(str, dims))})" for name, dims in expected.items())
            remedy = "" if dtype in expected else f"; convert it with {conversion}"
            raise InputError(
                f"input '{self.given.name}' is {dtype} {shape}; this model takes {accepted}, N >= 1{remedy}"
            )
        if self.whole and shape[0] != 1:
            name, whole = self.whole
            raise InputError(
                f"input '{self.given.name}' is {dtype} {shape}; output '{name}' has shape {whole}, without a row for "
                "each image, so they come one by one: N = 1"
            )


def _as_given(element_type: str, given: GraphInput, shape: Shape) -> Shape:
    """The shape of a batch as a user gives it."""
    return given.in_file(shape) if element_type == "float32" else image_shape(shape, element_type)


def _as_array(x: npt.ArrayLike) -> npt.NDArray[Any]:
    """`x` as an array in this machine's byte order. Raises InputError for what is none, or hides some of its values."""
    masked = sys.modules.get("numpy.ma")  # importing it takes time, and who has a masked array has done so
    if masked and isinstance(x, masked.MaskedArray):
        raise InputError("the input is a masked array; say what stands in the masked places: x.filled(value)")
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"the input is not an array: {printable(str(error))}") from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
