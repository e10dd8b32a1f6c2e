"""What a device is asked to do, as data: the planner writes a `Program`, a device carries it out.

Nothing here knows a device. Addresses are offsets into arenas until a device binds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 256  # bytes; every buffer starts on such a boundary


class Arena(Enum):
    """The device allocations of an engine."""

    WEIGHTS = "weights"  # uploaded once, shared by all batch sizes
    ACTIVATIONS = "activations"  # input, intermediate values, workspace, outputs
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


Argument: TypeAlias = Pointer | Scalar


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
    NHWC = "NHWC"  # (N, H, W, C) or (N, F), the last dimension rounded up to CHANNEL_ALIGNMENT, the excess zero


CHANNEL_ALIGNMENT = 4  # channels; one 16-byte vector of float32


def padded_channels(channels: int) -> int:
    """Channels of an NHWC value as stored."""
    return -(-channels // CHANNEL_ALIGNMENT) * CHANNEL_ALIGNMENT


@dataclass(frozen=True)
class Value:
    """A float32 value on the device. `shape` is the ONNX shape, whatever the layout."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    pointer: Pointer

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the memory: the ONNX shape, or (N, H, W, padded C), or (N, padded F)."""
        if self.layout is Layout.PLAIN:
            return self.shape
        batch, channels, *spatial = self.shape
        return batch, *spatial, padded_channels(channels)

    @property
    def pitch(self) -> int:
        """Floats from one row of channels or features to the next."""
        return self.stored_shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return 4 * math.prod(self.stored_shape)


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
class InputSlot:
    """Where the host writes the input and the steps that take it from there, one per accepted element type.

    `float32` expects (N, C, H, W) or (N, F); `uint8` (N, H, W, C), normalised on the device.
    """

    name: str
    shape: tuple[int, ...]
    pointer: Pointer
    steps: Mapping[str, Step]


@dataclass(frozen=True)
class Program:
    """Everything one run of one batch size does.

    The host copies the input to `input.pointer`, launches the input step for its element type and then `steps`, and
    copies `output_nbytes` bytes from `output` back: the output values, each at its pointer, then the status words at
    `status`, `status_per_image` int32 for each image, 0 where the input step met nothing but finite numbers.
    """

    batch: int
    input: InputSlot
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]
    output: Pointer
    output_nbytes: int
    status: Pointer
    status_per_image: int
    activations_nbytes: int
    values: tuple[Value, ...]  # the input and the value of every op, in order

    def __str__(self) -> str:
        """The steps as a table: what runs, how it is launched, what it must do."""
        lines = [f"batch {self.batch}, input '{self.input.name}' {self.input.shape}"]
        steps = (self.input.steps["float32"], *self.steps)
        wide = max(len(step.label) for step in steps)
        kernel = max(len(step.kernel.label) for step in steps)
        lines.append(f"{'step':<{wide}}  {'kernel':<{kernel}}{'grid':>18}{'block':>7}{'GFLOP':>9}{'MB':>9}")
        for step in steps:
            grid = "x".join(map(str, step.grid))
            work = f"{step.flop / 1e9:>9.3f}{step.nbytes / 1e6:>9.2f}"
            lines.append(f"{step.label:<{wide}}  {step.kernel.label:<{kernel}}{grid:>18}{step.block.x:>7}{work}")
        lines.append(f"{self.flop / 1e9:.2f} GFLOP; activation arena {self.activations_nbytes / 1e6:.1f} MB")
        return "\n".join(lines)

    @property
    def flop(self) -> int:
        """Floating-point operations of a run, counting two per multiply-add."""
        return sum(step.flop for step in self.steps)


@dataclass(frozen=True, eq=False)
class Plan:
    """The programs of all batch sizes of an engine, smallest first, and the weights that they share."""

    weights: WeightPlan
    programs: tuple[Program, ...]

    @property
    def device_nbytes(self) -> int:
        """Device memory after the build: weights once, one activation arena for all batch sizes."""
        return self.weights.weights_nbytes + max(program.activations_nbytes for program in self.programs)

    @property
    def kernels(self) -> frozenset[Kernel]:
        """Every kernel that building or running needs."""
        packs = {upload.pack.kernel for upload in self.weights.uploads if upload.pack}
        steps = {step.kernel for program in self.programs for step in program.steps}
        entries = {step.kernel for program in self.programs for step in program.input.steps.values()}
        return frozenset(packs | steps | entries)
