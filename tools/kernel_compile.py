"""Compile one kernel source for one architecture: what ptxas says of each kernel in it, and the code of each."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import disassembler
import sass
from kernel_variants import HOPPER, Defines, is_hopper_only

from vgg16gpu.devices.cuda.probe import Toolkit
from vgg16gpu.devices.cuda.ptxas import VERBOSE, Usage, parse
from vgg16gpu.devices.kernel_source import include_dirs

FLAGS = ("-std=c++17", "--fmad=false", "-Werror", "all-warnings", *VERBOSE)


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
        folders = [f"-I{folder}" for folder in include_dirs()]
        command = [str(toolkit.nvcc), *FLAGS, *macros, f"-arch={task.arch}", "--cubin", *folders]
        result = subprocess.run(
            [*command, "-o", str(cubin), str(task.source)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            said = result.stderr + result.stdout
            return Compiled(task, complaint=f"{task.source.name} for {task.arch}:\n{said}")
        code = sass.read(disassembler.disassemble(task.program, cubin)) if task.program else {}
    return Compiled(task, tuple(parse(result.stderr)), code)
