"""For whoever learns: `lab exercise`, and what each kernel takes (`lab list --kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.options import device_option, json_option
from vgg16gpu.cli.common.parsing import Whole
from vgg16gpu.cli.common.show import add_row, console, heading, print_json, table
from vgg16gpu.errors import InputError
from vgg16gpu_lab.exercises.exercise import NAMES, Exercise, Finding, exercise, exercises
from vgg16gpu_lab.exercises.judge import Verdict, check
from vgg16gpu_lab.measure.usage import USAGE_NOTE, usages
from vgg16gpu_lab.variant import Variant

FOLDER: Final = Path("exercises")

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group("exercise")
def exercise_command() -> None:
    """Six kernels with a hole: start one, change it, check it; hints and a solution are there. No GPU is needed."""


@exercise_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Show the exercises, in the order to do them."""
    if as_json:
        print_json({"exercises": [_content(found) for found in exercises()]})
        return
    for number, found in enumerate(exercises(), start=1):
        _say(f"{number}. {found.name}", f"   {found.task}")
    _say(f"Begin with `vgg16gpu lab exercise start {NAMES[0]}`.")


@exercise_command.command("start")
@click.argument("name")
@click.option("--dir", "folder", type=_FOLDER, default=FOLDER, show_default=True, metavar="FOLDER", help="Where to.")
@json_option
def start_command(name: str, folder: Path, as_json: bool) -> None:
    """Write the kernel of an exercise into a folder, for you to change. A file that is there is left alone."""
    found = exercise(name)
    path = found.write(folder)
    if as_json:
        print_json(_content(found) | {"file": str(path)})
        return
    _say(f"Written: {path}", found.task, f"Change it, then: `vgg16gpu lab exercise check {path}`")


@exercise_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@json_option
@click.pass_context
def check_command(ctx: click.Context, file: Path, device: str, as_json: bool) -> None:
    """Judge FILE, which `start` wrote and you have changed: the answer, and whether the idea is in it.

    FILE may also be the name of an exercise whose file lies in ./exercises. What threads read and write is counted by
    the types of lab/counted.cuh, on a GPU and on the CPU alike. Exit code 1 says that something is wrong; below it is
    what to look at.
    """
    file = _file(file)
    verdict = check(file, device)
    if as_json:
        print_json({"file": str(file), "passed": verdict.passed} | asdict(verdict))
    else:
        _print(verdict, file)
    ctx.exit(0 if verdict.passed else EXIT_CHECK_FAILED)


@exercise_command.command("hint")
@click.argument("name")
@click.argument("number", type=Whole(1), default=1)
@json_option
def hint_command(name: str, number: int, as_json: bool) -> None:
    """Show a hint: the first, or that of a NUMBER; each says more than the one before."""
    found = exercise(name)
    count = len(found.hints)
    if number > count:
        raise InputError(f"{found.name} has {count} hints, no hint {number}; `lab exercise solution {found.name}`?")
    if as_json:
        print_json({"name": found.name, "number": number, "hints": count, "hint": found.hints[number - 1]})
        return
    more = f"hint {found.name} {number + 1}" if number < count else f"solution {found.name}"
    _say(f"Hint {number} of {count}: {found.hints[number - 1]}", f"More: `vgg16gpu lab exercise {more}`")


@exercise_command.command("solution")
@click.argument("name")
@json_option
def solution_command(name: str, as_json: bool) -> None:
    """Show a kernel that passes, and why it does."""
    found = exercise(name)
    code = found.solution.read_text(encoding="utf-8")
    if as_json:
        print_json({"name": found.name, "explanation": found.explanation, "code": code})
        return
    _say(code, found.explanation)


def list_kernels(variants: Sequence[Variant], *, as_json: bool) -> None:
    """Print the resources of these variants' kernels. Raises DeviceError where no compiler can say."""
    found = usages(variants)
    if as_json:
        print_json(found.content)
        return
    screen = console()
    heading(screen, f"What each kernel takes: {found.title}")
    numbers = ["registers", "shared", "blocks", "occupancy"]
    shown = table(["kernel", *numbers, "bound by"], right=numbers)
    kernels = {usage.kernel: usage for usage in found.kernels}.values()
    for usage in kernels:
        counts = usage.registers, usage.shared_nbytes, usage.resident_blocks, f"{100 * usage.occupancy:.0f} %"
        add_row(shown, usage.kernel.split("<")[0], *counts, usage.bound)
    screen.print(shown)
    screen.print(USAGE_NOTE, markup=False)
    for usage in kernels:
        if usage.local_nbytes:
            _say(f"{usage.kernel}: {usage.local_nbytes} bytes of each thread lie in memory, not in registers.")


def _file(given: Path) -> Path:
    """Return the file meant: itself, or that of an exercise in ./exercises."""
    started = FOLDER / f"{str(given).replace('_', '-')}.cu"
    return started if not given.exists() and started.is_file() else given


def _content(found: Exercise) -> dict[str, Any]:
    return {"name": found.name, "title": found.title, "task": found.task, "hints": len(found.hints)}


def _print(verdict: Verdict, file: Path) -> None:
    _say(f"{verdict.exercise}: {file}, on {verdict.device}")
    for finding in verdict.findings:
        _say(*_lines(finding))
    if verdict.problem:
        _say(f"wrong  {verdict.problem}")
    if verdict.passed:
        _say(f"Passed. Why it works: `vgg16gpu lab exercise solution {verdict.exercise}`{_next(verdict.exercise)}")
    else:
        _say(f"Not yet. A hint: `vgg16gpu lab exercise hint {verdict.exercise}`")


def _lines(finding: Finding) -> list[str]:
    found = f"{finding.what}: {finding.found}"
    return (
        [f"ok     {found}"] if finding.ok else [f"wrong  {found}; wanted: {finding.wanted}", f"       {finding.look}"]
    )


def _next(name: str) -> str:
    following = NAMES[NAMES.index(name) + 1 :][:1]
    return "".join(f"; next: `vgg16gpu lab exercise start {name}`" for name in following)


def _say(*lines: str) -> None:
    for line in lines:
        console().print(line, markup=False)
