"""Launches as data, and the compiled model that a device runs: programs of launches, weights, inputs, status words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.program.types import Arena, DType, Pointer, TensorDesc, aligned


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value: 'i' is int (32 bits), 'f' is float."""

    value: int | float
    kind: Literal["i", "f"] = "i"


@dataclass(frozen=True)
class TmaDescriptor:
    """A kernel argument by value: a tensor for the bulk copy engine of compute capability 9.0.

    Dimensions and box are in elements, innermost first; strides in bytes, of all dimensions but the innermost.
    """

    pointer: Pointer
    element: DType
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def swizzle_nbytes(self) -> int:
        """Width of the swizzle pattern in shared memory: a row of the box."""
        return self.box[0] * self.element.nbytes


@dataclass(frozen=True)
class StridedIndexer:
    """A kernel argument by value, `struct StridedIndexer` of walk.cuh: rows of whole numbers, one for each dimension.

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


Argument: TypeAlias = Pointer | Scalar | TmaDescriptor | StridedIndexer


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


FIRST_WITH_EARLY_STARTS: Final = (9, 0)  # compute capability with programmatic dependent launches
GUARDED: Final = ("GUARDED", 1)  # the macro of kernels that do nothing where nobody needs what they compute


@dataclass(frozen=True)
class KernelLaunch:
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
    # Programmatic dependent launch: it may start before the step before it has ended, and waits for that one itself.
    programmatic: bool = False
    guard: Pointer | None = None  # a word: where it is 0 when the launch begins, the launch does nothing


@dataclass(frozen=True, eq=False)
class Upload:
    """Copy `array` to `target`; then, if given, launch `pack` (which reads the STAGING arena)."""

    array: npt.NDArray[np.generic]
    target: Pointer
    pack: KernelLaunch | None = None


@dataclass(frozen=True)
class WeightItem:
    """A piece of the weight arena that kernels know by its own address: one packed form of one parameter, say.

    `is_computed`: steps of the build write it, from what the calibration found.
    """

    offset: int
    nbytes: int
    is_computed: bool


@dataclass(frozen=True, eq=False)
class WeightPlan:
    """How the weights come onto the device, and how much room they take there. `items`: the pieces, by their places."""

    uploads: tuple[Upload, ...]
    weights_nbytes: int
    staging_nbytes: int
    items: tuple[WeightItem, ...]


@dataclass(frozen=True)
class InputEntry:
    """How inputs of one element type come in: where the host writes them, and the steps that take them from there."""

    pointer: Pointer
    nbytes: int
    steps: tuple[KernelLaunch, ...]


@dataclass(frozen=True)
class InputSlot:
    """The run-time input: one entry per accepted element type.

    `float32` expects (N, C, H, W) or (N, F); `uint8` (N, H, W, C), normalised on the device. Every entry ends, up to
    alignment, where the control words begin.
    """

    name: str
    shape: tuple[int, ...]
    entries: Mapping[str, InputEntry]


@dataclass(frozen=True)
class StatusBlock:
    """Words of 32 bits that the host zeroes with the copy that brings the input, and reads with the outputs.

    First the counters of kernels that work together (they stay on the device), then, from `error` on, which is aligned
    as a buffer is, what comes back: the error word, 0 or the number of the step in which a wait ran out; `batch` status
    words, bit 0 set for an image that holds NaN or Inf; and for each name in `watched` the largest magnitude stored of
    each image, as a float.
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
        """Return the word of image 0 of the value `watched[index]`."""
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
class LaunchPlan:
    """Everything one run of one batch size does.

    The host copies the inputs and zeroes, as one block that ends with the control words; launches the steps of the
    entry for its element type, then `steps`, then `output_steps`; and copies one block back: the control words from
    `control.error` on, then the outputs, each at its pointer, up to `output_end`. `others` are further inputs, float32
    as in ONNX, which lie before every entry of the first one; those of the arena GIVEN lie where a caller has them, and
    only runs that put addresses in their place can be made.

    `stored_outputs`: each output as `steps` leave it, which is the output itself where an op writes that, in a place
    that nothing else ever has; `output_steps` bring the others to the outputs.
    """

    batch: int
    input: InputSlot
    control: StatusBlock
    steps: tuple[KernelLaunch, ...]
    output_steps: tuple[KernelLaunch, ...]
    outputs: tuple[TensorDesc, ...]
    stored_outputs: tuple[TensorDesc, ...]
    output_end: int
    activations_nbytes: int
    values: tuple[TensorDesc, ...]  # the input, where it is stored, and the value of every op, in order
    others: tuple[TensorDesc, ...] = ()

    def __str__(self) -> str:
        """Format the steps as a table: label, kernel, grid, block, GFLOP, MB."""
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

    def all_steps(self, element_type: str = "float32") -> tuple[KernelLaunch, ...]:
        """Return every launch for an input of that element type."""
        return (*self.input.entries[element_type].steps, *self.steps, *self.output_steps)

    @property
    def given(self) -> tuple[TensorDesc, ...]:
        """The further inputs that lie where a caller has them."""
        return tuple(value for value in self.others if value.pointer.arena is Arena.GIVEN)

    def is_whole(self, y: TensorDesc) -> bool:
        """Return whether an output does not have a row for each image, so that it is only of use as a whole."""
        return y.shape[:1] != (self.batch,)

    @property
    def block(self) -> Pointer:
        """The start of the block that the host copies in."""
        places = [entry.pointer for entry in self.input.entries.values()]
        places += [value.pointer for value in self.others if value not in self.given]
        return min(places, key=lambda place: place.offset)

    @property
    def sent_nbytes(self) -> int:
        """Bytes of the block that the host copies in, whichever input it is."""
        return self.control.end - self.block.offset

    @property
    def returned_nbytes(self) -> int:
        """Bytes of the block that the host copies back."""
        return self.output_end - self.control.error.offset

    @property
    def flop(self) -> int:
        """Floating-point operations of a run, counting two per multiply-add."""
        return sum(step.flop for step in self.all_steps())


@dataclass(frozen=True, eq=False)
class PairScaling:
    """Work of the build that fixes the scales of float16 pairs.

    `program`, of batch 1, is run on each of `samples`, then `finish` once.
    """

    program: LaunchPlan
    samples: npt.NDArray[np.float32]
    finish: tuple[KernelLaunch, ...]


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """The programs of all batch sizes of an engine, smallest first, and the weights that they share.

    With `second_pass`, of batch 1, an image whose watched magnitudes are too small or too large is run again on it.
    Nobody looks at the images of a run that nobody waits for: behind it comes that one of `second_passes` which has its
    batch size (they stand in the order of `programs`), and its kernels do nothing but for images that `guard` names.
    `families`: the kernels that compute each value in `programs`. `keeps_values`: every value stays in its place there.
    """

    weights: WeightPlan
    programs: tuple[LaunchPlan, ...]
    calibration: PairScaling | None = None  # of float16 pairs; int8 has a calibration of its own, by a user
    second_pass: LaunchPlan | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    keeps_values: bool = False
    second_passes: tuple[LaunchPlan, ...] = ()

    @property
    def arithmetic(self) -> str:
        """Return for records which kernels on tensor cores multiply, and whether they do so in pairs; else "ffma"."""
        families = sorted({*self.families.values()} - {"ffma"})
        return ", ".join((*families, *(("pairs of float16",) if self.second_passes else ()))) or "ffma"

    @property
    def all_programs(self) -> tuple[LaunchPlan, ...]:
        """Every program that runs or builds need, without `second_passes`."""
        extra = (self.second_pass, self.calibration.program if self.calibration else None)
        return (*self.programs, *(program for program in extra if program))

    @property
    def activations_nbytes(self) -> int:
        """The activation arena, one for all programs."""
        words = 1 + self.programs[-1].batch if self.second_passes else 0
        return self.guard.offset + 4 * words if words else self._programs_nbytes

    @property
    def guard(self) -> Pointer:
        """A word that is set if any image needs a second pass, then one for each image; no program uses this place."""
        return Pointer(Arena.ACTIVATIONS, aligned(self._programs_nbytes))

    @property
    def _programs_nbytes(self) -> int:
        return max(program.activations_nbytes for program in (*self.all_programs, *self.second_passes))

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
            steps += program.steps + program.output_steps
            steps += [step for entry in program.input.entries.values() for step in entry.steps]
        return frozenset(step.kernel for step in steps)
