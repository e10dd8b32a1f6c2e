"""What was compiled, held against testbench/compiled.txt: the words of `make ptxas`, and its exit status."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import disassembler
import sass
from compiled_table import PATH, Figures, Key, Row, Table, compare, renewed, write
from kernel_compile import Compiled, Task
from kernel_variants import HOPPER

from vgg16gpu.devices.cuda.ptxas import Usage
from vgg16gpu.devices.kernel_source import own_sources

# Hopper, and Ampere: the oldest card with the copies (cp.async) and bfloat16 products of the kernels' fast ways, which
# the younger ones below Hopper run as they are.
ARCHS: Final = ("sm_80", "sm_90", HOPPER)
COMMAND: Final = 'python tools/ptxas.py --record --reason "why it takes more, and what that gains"'


@dataclass(frozen=True)
class Guard:
    """The table and what this run compiles of it: with which nvcc, which files (None: all), which architectures."""

    table: Table
    nvcc: str
    names: Collection[str] | None
    archs: Collection[str]
    path: Path = PATH

    def rows(self) -> dict[Key, Row]:
        """The recorded rows that this run should find again."""
        archs = {*self.archs, *((HOPPER,) if HOPPER.rstrip("a") in self.archs else ())}
        return {
            key: row
            for key, row in self.table.rows.items()
            if key.arch in archs and (self.names is None or key.file in self.names)
        }

    def check(self, found: Mapping[Key, Figures], *, counted: bool) -> int:
        """Say what differs; 1 if anything does. Another nvcc makes other code, so that nothing can be compared."""
        if not found and not self.rows():
            return 0
        if self.nvcc != self.table.nvcc:
            was = f"of nvcc {self.table.nvcc}" if self.table.nvcc else "empty"
            print(f"{self.path.name} is {was}, this is nvcc {self.nvcc}: only spills were checked.")
            return 0
        if not counted:
            print(f"Instructions were not compared, {disassembler.NAME} is missing: {disassembler.INSTALL}.")
        differences = compare(self.rows(), found)
        _tell(differences)
        if not differences:
            print(f"{len(found)} kernels are as {self.path.name} has them.")
            return 0
        print(f"{len(differences)} kernels are not as {self.path.name} has them. If that is meant: {COMMAND}")
        return 1

    def record(self, found: Mapping[Key, Figures], reason: str) -> int:
        """Write what differs and why; 2, and nothing is written, without a reason or with a part of another nvcc's."""
        if self.nvcc != self.table.nvcc and len(self.rows()) != len(self.table.rows):
            other = f"{self.path.name} is of nvcc {self.table.nvcc}, this is nvcc {self.nvcc}"
            return _refuse(f"{other}: record all, without FILE and --arch.")
        differences = compare(self.rows(), found)
        _tell(differences)
        if differences and not reason.strip():
            return _refuse(f"{len(differences)} kernels differ, and --record needs the reason: {COMMAND}")
        if differences or self.nvcc != self.table.nvcc:
            write(renewed(self.table, self.nvcc, found, differences, reason), self.path)
        print(f"{len(differences)} of {len(found)} kernels recorded anew in {self.path}.")
        return 0


def _tell(differences: Mapping[Key, str]) -> None:
    for key, difference in differences.items():
        print(f"{key}: {difference}")


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


def ships(source: Path) -> bool:
    """Whether a source is a kernel of the package itself: lab and ladder show what is slow, and have no rows."""
    return source.resolve() in {file.resolve() for file in own_sources()}


def figures(compiled: Iterable[Compiled]) -> dict[Key, Figures]:
    """The rows that a run's results make: of kernels that ship, on ARCHS."""
    return {
        Key(result.task.source.name, usage.kernel, setting(result.task), usage.arch): _figures(
            usage, result.code.get(usage.kernel)
        )
        for result in compiled
        if ships(result.task.source) and result.task.arch in ARCHS
        for usage in result.usages
    }


def setting(task: Task) -> str:
    """The macros of a compilation in one word."""
    return ",".join(f"{name}={value}" for name, value in task.defines) or "default"


def _figures(usage: Usage, code: sass.Code | None) -> Figures:
    instructions, loops = (code.instructions, tuple(map(str, code.loops))) if code else (None, ())
    return Figures(usage.registers, usage.shared_nbytes, usage.stack_nbytes, usage.spill_nbytes, instructions, loops)
