"""testbench/compiled.txt: what nvcc makes of each kernel that ships. Read, compared and written; see tools/ptxas.py.

A line for each kernel, macro setting and architecture: registers, shared memory, stack, spills, instructions, loops
(sass.py says which, and what is counted), and the number of the reason for which it was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vgg16gpu.io.files import atomic_writer

PATH: Final = Path(__file__).resolve().parents[1] / "testbench" / "compiled.txt"
HEADING: Final = """\
# What nvcc makes of each kernel that ships. `make ptxas` compares, `tools/ptxas.py --record --reason "..."` writes.
# File, kernel, architecture, macros | what it takes | of each loop the instructions, and those of each class | reason
"""

_REASON = re.compile(r"reason (\d+): (.+)")
_ROW = re.compile(
    r"(?P<file>\S+) (?P<kernel>\S+) (?P<arch>\S+) (?P<setting>\S+) \| (?P<registers>\d+) registers, "
    r"(?P<shared>\d+) B shared, (?P<stack>\d+) B stack, (?P<spilled>\d+) B spilled, (?P<instructions>\d+) instructions"
    r" \|(?P<loops>.*)\| (?P<reason>\d+)"
)
_NUMBERS: Final = ("registers", "shared", "stack", "spilled", "instructions", "reason")


@dataclass(frozen=True, order=True)
class Key:
    """Which kernel, compiled how: `setting` is "NAME=1,OTHER=2", or "default"."""

    file: str
    kernel: str
    setting: str
    arch: str

    def __str__(self) -> str:
        return f"{self.file} {self.kernel} {self.arch} {self.setting}"


@dataclass(frozen=True)
class Figures:
    """What a kernel takes. Without a disassembler `instructions` is None and `loops` says nothing."""

    registers: int
    shared_nbytes: int
    stack_nbytes: int
    spill_nbytes: int
    instructions: int | None = None
    loops: tuple[str, ...] = ()

    def __str__(self) -> str:
        memory = f"{self.shared_nbytes} B shared, {self.stack_nbytes} B stack, {self.spill_nbytes} B spilled"
        loops = "; ".join(self.loops)
        return f"{self.registers} registers, {memory}, {self.instructions} instructions | {loops} |"

    def named(self) -> dict[str, str]:
        """Each figure that is known, as a message shows it."""
        found = {
            "registers": str(self.registers),
            "bytes of shared memory": str(self.shared_nbytes),
            "bytes of stack": str(self.stack_nbytes),
            "bytes spilled": str(self.spill_nbytes),
        }
        if self.instructions is None:
            return found
        loops = {f"loop {number}": f"[{loop}]" for number, loop in enumerate(self.loops, 1)}
        return {**found, "instructions": str(self.instructions), **loops}


@dataclass(frozen=True)
class Row:
    """The recorded figures of a kernel, and the number of the reason for them."""

    figures: Figures
    reason: int


@dataclass(frozen=True)
class Table:
    """What was recorded: nvcc's release ("" where nothing was yet), the reasons by number, the rows."""

    nvcc: str = ""
    reasons: Mapping[int, str] = field(default_factory=dict)
    rows: Mapping[Key, Row] = field(default_factory=dict)

    def __str__(self) -> str:
        reasons = (f"reason {number}: {reason}\n" for number, reason in sorted(self.reasons.items()))
        rows = (f"{key} | {row.figures} {row.reason}\n" for key, row in sorted(self.rows.items()))
        return f"{HEADING}nvcc {self.nvcc}\n{''.join(reasons)}{''.join(rows)}"


def read(path: Path = PATH) -> Table:
    """The table of a file, an empty one if there is none; raises ValueError with the line that it cannot read."""
    if not path.is_file():
        return Table()
    nvcc, reasons, rows = "", dict[int, str](), dict[Key, Row]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        if line.startswith("nvcc "):
            nvcc = line.removeprefix("nvcc ")
        elif reason := _REASON.fullmatch(line):
            reasons[int(reason[1])] = reason[2]
        elif row := _ROW.fullmatch(line):
            rows[Key(row["file"], row["kernel"], row["setting"], row["arch"])] = _row(row)
        else:
            raise ValueError(f"{path}, line {number} is not understood: {line[:100]!r}. Record the table anew.")
    return Table(nvcc, reasons, rows)


def _row(row: re.Match[str]) -> Row:
    loops = tuple(filter(None, row["loops"].strip().split("; ")))
    registers, shared, stack, spilled, instructions, reason = map(int, row.group(*_NUMBERS))
    return Row(Figures(registers, shared, stack, spilled, instructions, loops), reason)


def write(table: Table, path: Path = PATH) -> None:
    """Write a table whole."""
    with atomic_writer(path) as stream:
        stream.write(str(table).encode())


def compare(recorded: Mapping[Key, Row], found: Mapping[Key, Figures]) -> dict[Key, str]:
    """What differs, by kernel and in words; `recorded` holds the rows that `found` should have."""
    differences: dict[Key, str] = {}
    for key in sorted(recorded.keys() | found.keys()):
        if key not in recorded:
            differences[key] = "is new: the table does not have it"
        elif key not in found:
            differences[key] = "is gone: the table has it, but it is no longer compiled"
        elif changes := _changes(recorded[key].figures, found[key]):
            differences[key] = changes
    return differences


def _changes(was: Figures, now: Figures) -> str:
    """Each figure that is not what it was; "" if none. What was not counted now is not compared."""
    before, after = was.named(), now.named()
    if now.instructions is None:
        before = {name: figure for name, figure in before.items() if name in after}
    names = dict.fromkeys((*before, *after))
    return "; ".join(
        f"{name}: was {before.get(name, 'none')}, is {after.get(name, 'none')}"
        for name in names
        if before.get(name) != after.get(name)
    )


def renewed(table: Table, nvcc: str, found: Mapping[Key, Figures], differing: Mapping[Key, str], reason: str) -> Table:
    """The table with what differs as found, for this reason, and without what is gone."""
    number = max(table.reasons, default=0) + 1
    rows = {key: row for key, row in table.rows.items() if key not in differing}
    rows |= {key: Row(found[key], number) for key in differing if key in found}
    return Table(nvcc, {**table.reasons, number: " ".join(reason.split())}, rows)
