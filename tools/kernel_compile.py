"""Compile one kernel source for one architecture: what ptxas says of each kernel in it, and the code of each."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import disassembler
import sass
from kernel_variants import HOPPER, Defines, is_hopper_only

from vgg16gpu.cuda_probe import Toolkit
from vgg16gpu.kernel_source import kernel_dir

FLAGS = ("-std=c++17", "--fmad=false", "-Xptxas", "-v")

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel on one architecture."""

    kernel: str
    arch: str
    registers: int
    shared_nbytes: int
    stack_nbytes: int
    spill_nbytes: int


@dataclass(frozen=True)
class Task:
    """One compilation; the code is read where `program`, a disassembler, is given."""

    source: Path
    defines: Defines
    arch: str
    program: Path | None = None


@dataclass(frozen=True)
class Compiled:
    """What became of a task: its kernels, their code if it was read, or the compiler's complaint."""

    task: Task
    usages: tuple[Usage, ...] = ()
    code: Mapping[str, sass.Code] = field(default_factory=dict)
    complaint: str = ""


def parse(text: str) -> list[Usage]:
    """Read the output of `nvcc -Xptxas -v`; raises ValueError if a kernel's figures are missing."""
    starts = [match.start() for match in _ENTRY.finditer(text)]
    blocks = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [_parse_block(block) for block in blocks]


def _parse_block(block: str) -> Usage:
    entry, frame, used, shared = (pattern.search(block) for pattern in (_ENTRY, _FRAME, _USED, _SHARED))
    if entry is None or frame is None or used is None:
        raise ValueError(f"ptxas output not understood:\n{block}")
    stack, stores, loads = (int(number) for number in frame.groups())
    shared_nbytes = int(shared[1]) if shared else 0
    return Usage(entry[1], entry[2], int(used[1]), shared_nbytes, stack, stores + loads)


def architectures(source: Path, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of `wanted` that a source is compiled for."""
    if not is_hopper_only(source):
        return tuple(wanted)
    return (HOPPER,) if {HOPPER, HOPPER.rstrip("a")} & {*wanted} else ()


def run(toolkit: Toolkit, task: Task) -> Compiled:
    """Compile, and disassemble if that is wanted."""
    macros = [f"-D{name}={value}" for name, value in task.defines]
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        cubin = Path(folder, "kernel.cubin")
        command = [str(toolkit.nvcc), *FLAGS, *macros, f"-arch={task.arch}", "--cubin", "-I", str(kernel_dir())]
        result = subprocess.run(
            [*command, "-o", str(cubin), str(task.source)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            said = result.stderr + result.stdout
            return Compiled(task, complaint=f"{task.source.name} for {task.arch}:\n{said}")
        code = sass.read(disassembler.disassemble(task.program, cubin)) if task.program else {}
    return Compiled(task, tuple(parse(result.stderr)), code)
