"""What a device is asked to do, as data: the planner writes a `Program`, a device carries it out.

Nothing here knows a device. Addresses are offsets into arenas until a device binds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 256  # bytes; every buffer starts on such a boundary


class Arena(Enum):
    """The device allocations of an engine."""

    WEIGHTS = "weights"  # written once, shared by all batch sizes
    ACTIVATIONS = "activations"  # input, control words, intermediate values, workspace, outputs
    STAGING = "staging"  # raw weights on their way through a packing kernel; freed after the build


@dataclass(frozen=True)
class Pointer:
    """A place in an arena, in bytes."""

    arena: Arena
    offset: int


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value: 'i' is int (32 bits), 'f' is float."""

    value: int | float
    kind: Literal["i", "f"] = "i"


class Element(Enum):
    """What a stored value is made of: (number in the kernels, bytes, planes, channels that it is padded to)."""

    F32 = 0, 4, 1, 4
    F16 = 1, 2, 1, 64
    BF16 = 2, 2, 1, 64
    F16_PAIR = 3, 2, 2, 64  # two float16 planes, all of `hi` before all of `lo`: value * scale[channel] = hi + lo
    U8 = 4, 1, 1, 64  # value = number * step
    S8 = 5, 1, 1, 64

    def __init__(self, number: int, nbytes: int, planes: int, channel_alignment: int) -> None:
        self.number = number  # the macro ELEMENT
        self.nbytes = nbytes  # of one element of one plane
        self.planes = planes
        self.channel_alignment = channel_alignment

    def padded(self, channels: int) -> int:
        """Channels, or features, as stored. Few channels, an image's say, are padded to 16 bytes alone."""
        if channels * self.nbytes <= 16:
            return 16 // self.nbytes
        return -(-channels // self.channel_alignment) * self.channel_alignment


@dataclass(frozen=True)
class TensorMap:
    """A kernel argument by value: a tensor for the bulk copy engine of compute capability 9.0.

    Dimensions and box are in elements, innermost first; strides in bytes, of all dimensions but the innermost.
    """

    pointer: Pointer
    element: Element
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def swizzle_nbytes(self) -> int:
        """Width of the swizzle pattern in shared memory: a row of the box."""
        return self.box[0] * self.element.nbytes


@dataclass(frozen=True)
class Walk:
    """A kernel argument by value, `struct Walk` of kernels/walk.cuh: rows of whole numbers, one for each dimension.

    What the rows mean (extents, strides in elements, limits) is the kernel's affair. At most 8 rows of 8.
    """

    RANK: ClassVar[int] = 8

    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.rows) > self.RANK or any(len(row) > self.RANK for row in self.rows):
            raise ValueError(f"a walk has at most {self.RANK} rows of {self.RANK} numbers: {self.rows}")

    @property
    def words(self) -> tuple[int, ...]:
        """All numbers, row by row, zeros where there are none."""
        padded = [(*row, *(0,) * (self.RANK - len(row))) for row in self.rows]
        missing = (0,) * self.RANK * (self.RANK - len(self.rows))
        return (*(word for row in padded for word in row), *missing)


Argument: TypeAlias = Pointer | Scalar | TensorMap | Walk


class Dim3(NamedTuple):
    """Grid or block dimensions, as CUDA counts them."""

    x: int
    y: int = 1
    z: int = 1


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: a file in kernels/, the extern "C" name in it, and the macros it is compiled with."""

    source: str
    name: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """Name and macros on one line, for tables and messages."""
        values = ",".join(str(value) for _, value in self.defines)
        return f"{self.name}<{values}>" if values else self.name


class Layout(Enum):
    """How a value lies in device memory."""

    PLAIN = "plain"  # the ONNX shape, row-major
    NHWC = "NHWC"  # (N, H, W, C) or (N, F), the last dimension padded as the element says, the excess zero


def padded_channels(channels: int) -> int:
    """Channels of a float32 NHWC value as stored."""
    return Element.F32.padded(channels)


@dataclass(frozen=True)
class Value:
    """A value on the device. `shape` is the ONNX shape, whatever the layout."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    pointer: Pointer
    element: Element = Element.F32
    scale: Pointer | None = None  # F16_PAIR: a float per stored channel, a power of two
    step: float = 1.0  # U8, S8

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of a plane in memory: the ONNX shape, or (N, H, W, padded C), or (N, padded F)."""
        if self.layout is Layout.PLAIN:
            return self.shape
        batch, channels, *spatial = self.shape
        return batch, *spatial, self.element.padded(channels)

    @property
    def pitch(self) -> int:
        """Elements from one row of channels or features to the next."""
        return self.stored_shape[-1]

    @property
    def plane_nbytes(self) -> int:
        """Bytes of a plane."""
        return self.element.nbytes * math.prod(self.stored_shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return self.element.planes * self.plane_nbytes


@dataclass(frozen=True)
class Step:
    """One kernel launch. `flop` and `nbytes` are what it must do, not what it happens to do."""

    kernel: Kernel
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    shared: int = 0  # dynamic shared memory, bytes
    flop: int = 0
    nbytes: int = 0
    names: tuple[str, ...] = ()  # ONNX values it computes; the last one is what it stores
    label: str = ""  # what a person calls it: "conv1_2 + relu + pool"
    early: bool = False  # may start before the step before it has ended: it waits for that one itself


@dataclass(frozen=True, eq=False)
class Upload:
    """Copy `array` to `target`; then, if given, launch `pack` (which reads the STAGING arena)."""

    array: npt.NDArray[np.generic]
    target: Pointer
    pack: Step | None = None


@dataclass(frozen=True, eq=False)
class WeightPlan:
    """How the weights come onto the device, and how much room they take there."""

    uploads: tuple[Upload, ...]
    weights_nbytes: int
    staging_nbytes: int


@dataclass(frozen=True)
class Entry:
    """How inputs of one element type come in: where the host writes them, and the steps that take them from there."""

    pointer: Pointer
    nbytes: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class InputSlot:
    """The run-time input: one entry per accepted element type.

    `float32` expects (N, C, H, W) or (N, F); `uint8` (N, H, W, C), normalised on the device. Every entry ends, up to
    alignment, where the control words begin.
    """

    name: str
    shape: tuple[int, ...]
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class Control:
    """Words of 32 bits that the host zeroes with the copy that brings the input, and reads with the outputs.

    First the counters of kernels that work together (they stay on the device), then, from `error` on, what comes back:
    the error word, 0 or the number of the step in which a wait ran out; `batch` status words, bit 0 set for an image
    that holds NaN or Inf; and for each name in `watched` the largest magnitude stored of each image, as a float.
    """

    counters: Pointer
    error: Pointer
    batch: int
    watched: tuple[str, ...] = ()
    lowest: float = 0.0  # of the watched magnitudes: below, pairs of float16 lose precision

    @property
    def status(self) -> Pointer:
        """The status word of image 0."""
        return Pointer(self.error.arena, self.error.offset + 4)

    def maxima(self, index: int) -> Pointer:
        """The word of image 0 of the value `watched[index]`."""
        return Pointer(self.error.arena, self.status.offset + 4 * self.batch * (1 + index))

    @property
    def returned_words(self) -> int:
        """Words from the error word to the end."""
        return 1 + self.batch * (1 + len(self.watched))

    @property
    def end(self) -> int:
        """Offset behind the last word."""
        return self.error.offset + 4 * self.returned_words


@dataclass(frozen=True)
class Program:
    """Everything one run of one batch size does.

    The host copies the inputs and zeroes, as one block that ends with the control words; launches the steps of the
    entry for its element type and then `steps`; and copies one block back: the control words from `control.error` on,
    then the outputs, each at its pointer, up to `output_end`. `others` are further inputs, float32 as in ONNX, which
    lie before every entry of the first one.
    """

    batch: int
    input: InputSlot
    control: Control
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]
    output_end: int
    activations_nbytes: int
    values: tuple[Value, ...]  # the input, where it is stored, and the value of every op, in order
    others: tuple[Value, ...] = ()

    def __str__(self) -> str:
        """The steps as a table: what runs, how it is launched, what it must do."""
        lines = [f"batch {self.batch}, input '{self.input.name}' {self.input.shape}"]
        steps = self.all_steps()
        wide = max(len(step.label) for step in steps)
        kernel = max(len(step.kernel.label) for step in steps)
        lines.append(f"{'step':<{wide}}  {'kernel':<{kernel}}{'grid':>18}{'block':>7}{'GFLOP':>9}{'MB':>9}")
        for step in steps:
            grid = "x".join(map(str, step.grid))
            work = f"{step.flop / 1e9:>9.3f}{step.nbytes / 1e6:>9.2f}"
            lines.append(f"{step.label:<{wide}}  {step.kernel.label:<{kernel}}{grid:>18}{step.block.x:>7}{work}")
        lines.append(f"{self.flop / 1e9:.2f} GFLOP; activation arena {self.activations_nbytes / 1e6:.1f} MB")
        return "\n".join(lines)

    def all_steps(self, element_type: str = "float32") -> tuple[Step, ...]:
        """Everything that is launched for an input of that element type."""
        return (*self.input.entries[element_type].steps, *self.steps)

    def is_whole(self, y: Value) -> bool:
        """Whether an output does not have a row for each image, so that it is only of use as a whole."""
        return y.shape[:1] != (self.batch,)

    @property
    def block(self) -> Pointer:
        """Where the block begins that the host copies in."""
        places = [entry.pointer for entry in self.input.entries.values()] + [value.pointer for value in self.others]
        return min(places, key=lambda place: place.offset)

    @property
    def flop(self) -> int:
        """Floating-point operations of a run, counting two per multiply-add."""
        return sum(step.flop for step in self.all_steps())


@dataclass(frozen=True, eq=False)
class Calibration:
    """Work of the build that fixes scales: `program`, of batch 1, on each of `samples`, then `finish` once."""

    program: Program
    samples: npt.NDArray[np.float32]
    finish: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The programs of all batch sizes of an engine, smallest first, and the weights that they share.

    With `second_pass`, of batch 1, an image whose watched magnitudes are too small or too large is run again on it.
    `families`: the kernels that compute each value in `programs`.
    """

    weights: WeightPlan
    programs: tuple[Program, ...]
    calibration: Calibration | None = None
    second_pass: Program | None = None
    families: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_programs(self) -> tuple[Program, ...]:
        """Every program that runs or builds need."""
        extra = (self.second_pass, self.calibration.program if self.calibration else None)
        return (*self.programs, *(program for program in extra if program))

    @property
    def activations_nbytes(self) -> int:
        """The activation arena, one for all programs."""
        return max(program.activations_nbytes for program in self.all_programs)

    @property
    def device_nbytes(self) -> int:
        """Device memory after the build."""
        return self.weights.weights_nbytes + self.activations_nbytes

    @property
    def kernels(self) -> frozenset[Kernel]:
        """Every kernel that building or running needs."""
        steps = [upload.pack for upload in self.weights.uploads if upload.pack]
        steps += self.calibration.finish if self.calibration else ()
        for program in self.all_programs:
            steps += program.steps
            steps += [step for entry in program.input.entries.values() for step in entry.steps]
        return frozenset(step.kernel for step in steps)
