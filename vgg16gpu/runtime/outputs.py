"""Copy outputs to the host, as arrays with a row for each image, and decode what they are stored as."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array, Dim
from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.program.launch import LaunchPlan, StatusBlock
from vgg16gpu.program.types import DType, TensorDesc


def image_shape(shape: tuple[Dim, ...], element_type: str) -> tuple[Dim, ...]:
    """How images of a shape (N, C, H, W) lie on the host: bytes have the channels last."""
    return shape[:1] + shape[2:] + shape[1:2] if element_type == "uint8" else shape


def decoded(value: TensorDesc, stored: Bytes) -> Array:
    """The numbers in the memory of a value, in its stored shape, as float32; scales of pairs are left in."""
    planes = stored.reshape(value.element.planes, -1)
    numbers: Array
    match value.element:
        case DType.F32:
            numbers = planes[0].view(np.float32)
        case DType.BF16:
            numbers = (planes[0].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case DType.F16 | DType.F16_PAIR:
            with np.errstate(invalid="ignore"):  # halves of what float16 cannot hold: infinities of both signs
                numbers = planes.view(np.float16).astype(np.float32).sum(axis=0)
        case DType.U8:
            numbers = planes[0].astype(np.float32) * np.float32(value.step)
        case DType.S8:
            numbers = planes[0].view(np.int8).astype(np.float32) * np.float32(value.step)
    return numbers.reshape(value.stored_shape)


LARGEST_FLOAT16 = 65504.0

Outputs: TypeAlias = Array | tuple[Array, ...]

NONFINITE = "holds NaN or Inf; clean the data, or allow them (allow_nonfinite=True, --allow-nonfinite)"
LOST = "values leave the range of float16 inside the network; use precision bf16 or fp32"


class OutOfRangeError(InputError):
    """Values of so many images left the range of float16 inside the network."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


class OutputRows(NamedTuple):
    """One row of every output, and one of each flag, for each image.

    An output that has no rows (`LaunchPlan.is_whole`) is all in the row of the only image.
    """

    outputs: tuple[Array, ...]
    nonfinite: npt.NDArray[np.bool_]  # the image holds NaN or Inf
    out_of_range: npt.NDArray[np.bool_]  # a value left the range that its element is good for

    @property
    def is_flagged(self) -> bool:
        """Return whether any flag of any image is set."""
        return bool(np.count_nonzero(self.nonfinite) or np.count_nonzero(self.out_of_range))

    def rows(self, first: int, last: int) -> OutputRows:
        """Those of some of the images; their outputs are copies, so that the others can go."""
        return OutputRows(
            tuple(array[first:last].copy() for array in self.outputs),
            self.nonfinite[first:last],
            self.out_of_range[first:last],
        )


class ResultBlock:
    """A host buffer as the place that runs of a program copy their block to."""

    def __init__(self, program: LaunchPlan, buffer: Bytes) -> None:
        control = program.control
        words = buffer[: 4 * control.returned_words].view(np.uint32)
        self._program = program
        self._lowest = control.lowest
        self._words = words
        self._least, self._room = _clean_words(control)
        self._status = words[1 : 1 + program.batch]
        self._maxima = words[1 + program.batch :].view(np.float32).reshape(len(control.watched), program.batch)
        self._outputs = [
            buffer[value.pointer.offset - control.error.offset :][: value.nbytes].view(np.float32).reshape(value.shape)
            for value in program.outputs
        ]
        self._rows = [
            output[np.newaxis] if program.is_whole(value) else output
            for output, value in zip(self._outputs, program.outputs, strict=True)
        ]

    def read(self, count: int) -> OutputRows:
        """A copy of what the last run left here of its first `count` images.

        Raises KernelError, naming the operator, where a kernel gave up waiting.
        """
        # Nearly every run is clean, and one comparison of all words says so sooner than a look at each image.
        is_clean = not np.count_nonzero(self._words - self._least > self._room)  # what is below `least` wraps around
        flags = (np.zeros(count, np.bool_), np.zeros(count, np.bool_)) if is_clean else self._flags(count)
        return OutputRows(tuple([rows[:count].copy() for rows in self._rows]), *flags)

    def whole(self, count: int | None = None) -> tuple[Array, ...]:
        """A copy of all outputs. NaN and Inf are let through, but where pairs would spread them otherwise than float32.

        Raises KernelError as `read` does, and OutOfRangeError for those among the first `count` images, or all, whose
        values left the range.
        """
        nonfinite, lost = self._flags(self._program.batch if count is None else count)
        if self._lowest == 0:
            lost &= ~nonfinite
        if lost.any():
            raise OutOfRangeError(f"{_named(lost)}: {LOST}", int(np.count_nonzero(lost)))
        return tuple([output.copy() for output in self._outputs])

    def _flags(self, count: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """What the control words say of each image: `OutputRows.nonfinite` and `OutputRows.out_of_range`."""
        if self._words[0]:
            raise self._gave_up()
        maxima = self._maxima[:, :count]
        in_range = (maxima >= self._lowest) & (maxima <= LARGEST_FLOAT16)  # false for NaN
        return self._status[:count] != 0, np.logical_not(in_range.all(axis=0))

    def _gave_up(self) -> KernelError:
        number = int(self._words[0].view(np.int32))
        names = [value.name for value in self._program.values if value.name != self._program.input.name]
        name = f" '{names[number - 1]}'" if 1 <= number <= len(names) else ""
        return KernelError(
            f"operator {number}{name}: a kernel waited in vain for data and gave up, so the results are wrong. "
            "Run again; if that fails too, the GPU is overloaded beyond measure or there is a fault in the kernel"
        )


def _clean_words(control: StatusBlock) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """The least value of each word that comes back from a run without complaint, and how far it may be above that.

    Bits of floats that are not negative are in the order of the floats; those of negative ones and NaN are above.
    """
    lowest, largest = np.array([control.lowest, LARGEST_FLOAT16], np.float32).view(np.uint32)
    least, room = np.zeros((2, control.returned_words), np.uint32)
    least[1 + control.batch :] = lowest
    room[1 + control.batch :] = largest - lowest
    return least, room


def read_results(program: LaunchPlan, buffer: Bytes, count: int) -> OutputRows:
    """What a block that came back says of its first `count` images. Raises KernelError where a kernel gave up."""
    return ResultBlock(program, buffer).read(count)


def check_flags(parts: Sequence[OutputRows], allows_nonfinite: bool, where: str = "") -> None:
    """Raise InputError for NaN and Inf, unless they are allowed, and for overflow that is not due to them."""
    if not any(part.is_flagged for part in parts):
        return
    nonfinite = np.concatenate([part.nonfinite for part in parts])
    lost = np.concatenate([part.out_of_range for part in parts]) & ~nonfinite
    if nonfinite.any() and not allows_nonfinite:
        raise InputError(f"{where}{_named(nonfinite)} {NONFINITE}")
    if lost.any():
        raise InputError(f"{where}{_named(lost)}: {LOST}")


def joined(parts: Sequence[OutputRows], whole: Collection[int] = ()) -> tuple[Array, ...]:
    """The outputs of inputs that were run in parts, one at least. whole: numbers of outputs without a row for each."""
    if len(parts) == 1:
        outputs = parts[0].outputs
    else:
        outputs = tuple(np.concatenate(arrays) for arrays in zip(*(part.outputs for part in parts), strict=True))
    return tuple(y.reshape(y.shape[1:]) if i in whole else y for i, y in enumerate(outputs)) if whole else outputs


def problems(results: OutputRows, allows_nonfinite: bool) -> list[str]:
    """What is wrong with each image by its flags, as `check_flags` says it; "" for nothing."""
    lost = results.out_of_range & ~results.nonfinite
    nonfinite = results.nonfinite & (not allows_nonfinite)
    return [NONFINITE if bad else LOST if out else "" for bad, out in zip(nonfinite, lost, strict=True)]


def _named(chosen: npt.NDArray[np.bool_]) -> str:
    """How messages call the inputs that are marked, the first ones at least."""
    found = np.flatnonzero(chosen)
    which = ", ".join(map(str, found[:8])) + " ..." * (len(found) > 8)
    return f"input {which} of {len(chosen)} (counted from 0)"
