"""Compile kernels for every architecture that nvcc knows; exit 1 if one spills registers or takes what it did not take.

`python tools/ptxas.py [--arch sm_90] [FILE...]`. Each file is compiled with every macro setting that the planner may
give a GPU: see kernel_variants.py. What only compute capability 9.0 has is compiled for that alone. The kernels that
ship are compared with testbench/compiled.txt (compiled_table.py) on ARCHS; `--record --reason "..."` renews it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compiled_table
import disassembler
from compiled_guard import ARCHS, Guard, figures, ships
from kernel_compile import Compiled, Task, architectures, run
from kernel_variants import variants

from vgg16gpu.devices.cuda.probe import Toolkit, compile_problem, find_toolkits
from vgg16gpu.devices.cuda.ptxas import Usage
from vgg16gpu.devices.cuda.versions import nvcc_release
from vgg16gpu.devices.kernel_source import files


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a line for each kernel and architecture, compare or record.

    Returns 1 if a kernel does not compile, spills or differs from the table, 2 if this cannot be done here.
    """
    options = _options(arguments)
    toolkit = next((found for found in find_toolkits() if not compile_problem(found)), None)
    if toolkit is None:
        print("No working nvcc in CUDA_HOME, CUDA_ROOT, PATH or /usr/local/cuda.", file=sys.stderr)
        return 2
    program = disassembler.find(toolkit)
    if options.record and program is None:
        print(f"--record needs {disassembler.NAME}: {disassembler.INSTALL}.", file=sys.stderr)
        return 2
    archs = options.arch or (ARCHS[:-1] if options.record else toolkit.archs)
    chosen = [file.resolve() for file in options.files] or list(files(".cu"))
    if options.record:
        chosen = list(filter(ships, chosen))
    compiled = compile_all(toolkit, tasks(chosen, archs, program))
    failed = report(
        [usage for result in compiled for usage in result.usages],
        [result.complaint for result in compiled if result.complaint],
    )
    if any(result.complaint for result in compiled):
        return failed
    names = {file.name for file in chosen if ships(file)} if options.files else None
    guard = Guard(compiled_table.read(), nvcc_release(toolkit.nvcc), names, archs)
    found = figures(compiled)
    if options.record:
        return max(failed, guard.record(found, options.reason))
    return max(failed, guard.check(found, counted=program is not None))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/ptxas.py", description="Compile kernels for every architecture.")
    parser.add_argument("files", nargs="*", type=Path, help="kernel sources (default: all)")
    parser.add_argument("--arch", action="append", help="only this architecture, such as sm_90")
    parser.add_argument("--record", action="store_true", help="write what is found into the table")
    parser.add_argument("--reason", default="", help="with --record: why it takes more, and what that gains")
    options = parser.parse_args(arguments)
    if missing := [str(file) for file in options.files if not file.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}")
    if options.reason and not options.record:
        parser.error("--reason is for --record; give both")
    return options


# ---- Compile


def tasks(files: Iterable[Path], archs: Sequence[str], program: Path | None) -> list[Task]:
    """Every compilation, with the disassembler where the table needs it."""
    return [
        Task(file, defines, arch, program if ships(file) and arch in ARCHS else None)
        for file in files
        for arch in architectures(file, archs)
        for defines in variants(file)
    ]


def compile_all(toolkit: Toolkit, waiting: Sequence[Task]) -> list[Compiled]:
    """Run all, as many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda task: run(toolkit, task), waiting))


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
