"""Launches of kernels: the compiled kernel, grid and block, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from vgg16gpu.program.values import DType, Pointer


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
