"""What an engine takes: arrays of these element types and shapes. All else is refused, with a word on what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import GraphInput, Shape
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.runtime.host_arrays import as_array, is_tensor
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.stored import image_shape

Images: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
Input: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]
OpenShape: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True)
class InputForm:
    """The one input of an engine: how a caller gives it.

    accepted: the shape of one sample, by element type; None for a side that may be any. whole: by its name, the shape
    of the first output that has no row for each image, if there is one. why_fixed: says what fixes the size.
    """

    given: GraphInput
    accepted: Mapping[np.dtype[Any], OpenShape]
    whole: tuple[str, Shape] | None
    why_fixed: Callable[[], str] | None = None

    @classmethod
    def of(cls, given: GraphInput, program: LaunchPlan, why_fixed: Callable[[], str] | None = None) -> InputForm:
        """That of a program and of its input as the file has it."""
        whole = next(((y.name, y.shape) for y in program.outputs if program.is_whole(y)), None)
        return cls(given, _accepted(given, program, program.input.shape), whole, why_fixed)

    @classmethod
    def of_any_size(cls, given: GraphInput, program: LaunchPlan, shape: OpenShape) -> InputForm:
        """That of programs for any size; `shape` of a batch says what is open. It knows no outputs."""
        return cls(given, _accepted(given, program, shape), None)

    def sides(self, element_type: str, shape: Shape) -> tuple[int, int]:
        """Height and width of a batch of images in the order that the kernels read."""
        return (shape[1], shape[2]) if element_type == "uint8" else (shape[2], shape[3])

    def only(self, x: Any) -> Any:
        """The array itself, which may come in a dict from the input's name."""
        if isinstance(x, Mapping):
            if set(x) != {self.given.name}:
                raise InputError(f"inputs {shown(sorted(map(str, x)))}: this model has one input, '{self.given.name}'")
            return x[self.given.name]
        return x

    def checked(self, x: Input) -> Images:
        """An array on the host in the order that the kernels read. Raises InputError."""
        given = self.only(x)
        images = as_array(given)
        if images.dtype == np.float16:
            images = images.astype(np.float32)  # exact
        self.check(images.dtype, images.shape, "x.float()" if is_tensor(given) else "x.astype(np.float32)")
        return self.given.from_file(images) if images.dtype == np.float32 else images

    def checked_or_foreign(self, x: Any) -> Any:
        """The same, of an item of a stream; an array on the GPU as it is, for who runs it to check."""
        given = self.only(x)
        return given if is_on_device(given) else self.checked(given)

    def check(self, dtype: np.dtype[Any], shape: Shape, conversion: str) -> None:
        """Raise InputError for an element type or shape that is not taken; `conversion`: how to mend the type."""
        expected = self.accepted.get(dtype)
        if expected is None or not _fits(shape[1:], expected):
            accepted = " or ".join(f"{name} (N, {_listed(dims)})" for name, dims in self.accepted.items())
            remedy = f"; convert it with {conversion}" if expected is None else ""
            if expected is not None and self.why_fixed and self._has_channels(dtype, shape[1:], expected):
                remedy = f"; {self.why_fixed()}"
            raise InputError(f"input '{self.given.name}' is {dtype} {shape}; this model takes {accepted}{remedy}")
        self.check_rows(dtype, shape)

    def _has_channels(self, dtype: np.dtype[Any], sample: Shape, expected: OpenShape) -> bool:
        """Whether a sample is an image of so many channels, so that only its size is wrong."""
        axis = -1 if dtype == np.uint8 or self.given.channels_last else 0
        return len(sample) == len(expected) and sample[axis] == expected[axis]

    def check_rows(self, dtype: np.dtype[Any], shape: Shape) -> None:
        """Raise InputError for more or less than one image where an output has no row for each."""
        if self.whole and shape[0] != 1:
            name, whole = self.whole
            raise InputError(
                f"input '{self.given.name}' is {dtype} {shape}; output '{name}' has shape {whole}, without a row for "
                "each image, so they come one by one: N = 1"
            )


def _accepted(given: GraphInput, program: LaunchPlan, shape: OpenShape) -> dict[np.dtype[Any], OpenShape]:
    """The shape of a sample as a user gives it, by element type. shape: of a batch."""
    return {
        np.dtype(name): (given.in_file(shape) if name == "float32" else image_shape(shape, name))[1:]
        for name in program.input.entries
    }


def _fits(sample: Shape, expected: OpenShape) -> bool:
    """Whether a sample has this shape; a side that may be any has a pixel at least."""
    return sample == expected or (
        len(sample) == len(expected)
        and all(dim == want or (want is None and dim > 0) for dim, want in zip(sample, expected, strict=True))
    )


def _listed(dims: OpenShape) -> str:
    """A shape for a message."""
    return ", ".join("any" if dim is None else str(dim) for dim in dims)
