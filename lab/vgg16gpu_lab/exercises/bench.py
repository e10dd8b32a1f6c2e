"""Runs the kernels of an exercise on a device: small problems, poisoned outputs, and what counted.cuh notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_text
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import ALIGNMENT, Arena, Pointer
from vgg16gpu_lab.exercises.log import ENTRIES, Log, Words, read_log

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Scalars = TypeVar("Scalars", bound=np.generic)

_POISON: Final = 0xFF  # a byte; four of them are a NaN
_MOST_BYTES: Final = 1 << 20  # of a file of kernels
_DEFINE: Final = re.compile(r"^[ \t]*#define[ \t]+(\w+)[ \t]+(\d{1,9})\b", re.MULTILINE | re.ASCII)
_LOG: Final = "counted_log"


@dataclass(frozen=True)
class Launch:
    """A launch of one of the file's kernels: names of arrays, and numbers."""

    kernel: str
    grid: Dim3
    block: Dim3
    arguments: tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """A problem: what is given, what is computed, and the right answer."""

    name: str
    given: Arrays
    launches: tuple[Launch, ...]
    expected: npt.NDArray[np.float64]  # of the array "y", of float32
    workspace: Mapping[str, int] = field(default_factory=dict)  # floats of other arrays that kernels write


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the norm-wise error, what was written where nothing belongs, what was noted."""

    error: float
    trespass: str
    log: Log


def read_kernels(path: Path) -> str:
    """Return the text of a file of kernels. Raises InputError where it cannot be read, is no text, or has no end."""
    return read_text(path, most_bytes=_MOST_BYTES, errors="strict")


class Bench:
    """A file of kernels on a device."""

    def __init__(self, device: Device, path: Path) -> None:
        self.device, self.path = device, path
        self.defines = {name: int(value) for name, value in _DEFINE.findall(read_kernels(path))}

    def number(self, name: str, least: int, most: int) -> int:
        """Return a #define of the file. Raises InputError where it is absent, or not within these bounds."""
        value = self.defines.get(name)
        if value is None or not least <= value <= most:
            found = "is not there" if value is None else f"is {value}"
            raise InputError(f"#define {name} {found}; the launch needs it, a number from {least} to {most}")
        return value

    def run(self, case: Case) -> Outcome:
        """Build, run and compare. Raises KernelError, DeviceError."""
        kernels = {name: Kernel(str(self.path), name, (("COUNTED", 1),)) for name in _names(case)}
        self.device.build(kernels.values())
        sizes = _sizes(case)
        places, nbytes = _places(sizes)
        base = self.device.allocate(nbytes)
        try:
            self._fill(base, nbytes, case, places)
            notes = self.device.constant(next(iter(kernels.values())), _LOG)
            self.device.copy_in(notes, np.zeros(1, np.uint64))
            steps = [_step(launch, kernels[launch.kernel], places) for launch in case.launches]
            run = self.device.bind(steps, {Arena.ACTIVATIONS: base})
            try:
                run()
                y = self._read(base + places["y"], np.empty(case.expected.shape, np.float32))
                everything = self._read(base, np.empty(nbytes, np.uint8))
                words = self._noted(notes)
            finally:
                self.device.unbind(run)
        finally:
            self.device.free(base)
        arrays = {name: (base + places[name], size) for name, size in sizes.items()}
        trespass = _trespass(everything, sizes, places)
        return Outcome(layer_error(y, case.expected), trespass, read_log(words, arrays))

    def _noted(self, notes: int) -> Words:
        """Return the log: the count, and the entries that there was room for."""
        count = int(self._read(notes, np.empty(1, np.uint64))[0])
        return self._read(notes, np.empty(1 + 2 * min(count, ENTRIES), np.uint64))

    def _read(self, address: int, target: npt.NDArray[Scalars]) -> npt.NDArray[Scalars]:
        """Copy the target from the device."""
        self.device.copy_out(target, address)
        self.device.synchronize()
        return target

    def _fill(self, base: int, nbytes: int, case: Case, places: Mapping[str, int]) -> None:
        """Write NaN everywhere, then the given arrays."""
        self.device.copy_in(base, np.full(nbytes, _POISON, np.uint8))
        for name, values in case.given.items():
            self.device.copy_in(base + places[name], np.ascontiguousarray(values))
        self.device.synchronize()


def _names(case: Case) -> tuple[str, ...]:
    return tuple(dict.fromkeys(launch.kernel for launch in case.launches))


def _sizes(case: Case) -> dict[str, int]:
    """Return the bytes of each array."""
    given = {name: values.nbytes for name, values in case.given.items()}
    return given | {name: 4 * count for name, count in case.workspace.items()} | {"y": 4 * case.expected.size}


def _places(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return offsets, with a gap before and behind each array, and bytes in all."""
    places, end = {}, ALIGNMENT
    for name, nbytes in sizes.items():
        places[name] = end
        end += (-(-nbytes // ALIGNMENT) + 1) * ALIGNMENT
    return places, end


def _step(launch: Launch, kernel: Kernel, places: Mapping[str, int]) -> KernelLaunch:
    arguments = tuple(
        Pointer(Arena.ACTIVATIONS, places[argument]) if isinstance(argument, str) else Scalar(argument)
        for argument in launch.arguments
    )
    return KernelLaunch(kernel, launch.grid, launch.block, arguments)


def _trespass(found: npt.NDArray[np.uint8], sizes: Mapping[str, int], places: Mapping[str, int]) -> str:
    """Return the array behind which something was written; "" where none was."""
    if not (found[:ALIGNMENT] == _POISON).all():
        return f"before {next(iter(sizes))}"
    for name, nbytes in sizes.items():
        end = places[name] + nbytes
        if not (found[end : (end + 2 * ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT] == _POISON).all():
            return f"behind {name}"
    return ""
