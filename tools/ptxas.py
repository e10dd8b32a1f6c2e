"""Compile kernels for every architecture that nvcc knows and print what they take; exit 1 if one spills registers.

`python tools/ptxas.py [--arch sm_90] [FILE...]`. Each file is compiled with every macro setting that the planner may
give a GPU: see kernel_variants.py. What only compute capability 9.0 has is compiled for that alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernel_variants import HOPPER, Defines, is_hopper_only, variants

from vgg16gpu.cuda_probe import Toolkit, compile_problem, find_toolkits
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


def compile_file(toolkit: Toolkit, source: Path, defines: Defines, arch: str) -> tuple[str, str]:
    """Compile one file for one architecture: what ptxas said, and the compiler's complaint, or ""."""
    macros = [f"-D{name}={value}" for name, value in defines]
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        command = [str(toolkit.nvcc), *FLAGS, *macros, f"-arch={arch}", "--cubin", "-I", str(kernel_dir())]
        command += ["-o", str(Path(folder, "kernel.cubin")), str(source)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stderr, "" if result.returncode == 0 else f"{source.name} for {arch}:\n{result.stderr}{result.stdout}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a line for each kernel and architecture; 1 if one does not compile or spills, 2 without nvcc."""
    parser = argparse.ArgumentParser(prog="tools/ptxas.py", description="Compile kernels for every architecture.")
    parser.add_argument("files", nargs="*", type=Path, help="kernel sources (default: all)")
    parser.add_argument("--arch", action="append", help="only this architecture, such as sm_90")
    options = parser.parse_args(arguments)
    toolkit = next((found for found in find_toolkits() if not compile_problem(found)), None)
    if toolkit is None:
        print("No working nvcc in CUDA_HOME, CUDA_ROOT, PATH or /usr/local/cuda.", file=sys.stderr)
        return 2
    files = options.files or sorted(kernel_dir().rglob("*.cu"))
    tasks = [
        (toolkit, file, defines, arch)
        for file in files
        for arch in architectures(file, options.arch or toolkit.archs)
        for defines in variants(file)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda task: compile_file(*task), tasks))
    complaints = [complaint for _, complaint in results if complaint]
    usages = [usage for text, complaint in results if not complaint for usage in parse(text)]
    return report(usages, complaints)


def report(usages: Sequence[Usage], complaints: Sequence[str]) -> int:
    """Print what was found; 1 if anything is wrong."""
    for usage in sorted(usages, key=lambda usage: (usage.kernel, int(re.sub(r"\D", "", usage.arch)))):
        line = f"{usage.kernel:32} {usage.arch:7} {usage.registers:4} registers {usage.shared_nbytes:6} B shared"
        print(line + (f"  SPILLS {usage.spill_nbytes} B" if usage.spill_nbytes else ""))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    spilling = [usage for usage in usages if usage.spill_nbytes]
    print(f"{len(usages)} kernels compiled, {len(spilling)} spill, {len(complaints)} files do not compile.")
    return 1 if spilling or complaints or not usages else 0


if __name__ == "__main__":
    sys.exit(main())
