"""Plant faults that were mended once, one at a time, in copies of the checkout: a test must fail on each.

    python -m tests.net.replant                # one line: all caught, or how many are not; exit code 1 then
    python -m tests.net.replant --only server  # faults that have this in their names or in those of their files
    python -m tests.net.replant --check        # only whether they apply and their tests are there
    python -m tests.net.replant --list

A fault is tests/net/faults/NAME.patch: a diff against the code of today (`git diff -U2`), below a head of these lines.

    Fault: what a user saw, in a sentence
    Mended: the commit that mended it; of the faults of issue 49 their row in its list, A5 say
    Test: the tests that must fail, as pytest names them
    Needs: modules without which no test sees it, torch say; where they are missing the fault is passed over

A test counts that fails with the fault and passes without it. A patch that no longer applies counts as not caught,
until it is written again for the same fault.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

ROOT: Final = Path(__file__).resolve().parents[2]
FAULTS: Final = Path(__file__).with_name("faults")

_HEAD: Final = ("Fault", "Mended", "Test")
_DIFF: Final = "diff --git "
_FILE: Final = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
_HAS_FAILED: Final = re.compile(r"^=* ?[1-9]\d* failed\b|^\++ Timeout \++$", re.MULTILINE)
_TEST_SECONDS: Final = 60  # of one test: with a fault something may wait for ever
_SECONDS: Final = 240  # of all tests of a fault
_PYTEST: Final = (
    *("-m", "pytest", "--tb=line", "-p", "no:cacheprovider"),
    # The other method leaves fixtures waiting that wait for what never comes.
    *("-o", f"timeout={_TEST_SECONDS}", "-o", "timeout_method=thread"),
)

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Fault:
    """A fault that was mended. tests: those that must fail; files: those that the patch at `path` changes."""

    name: str
    words: str
    mended: str
    tests: tuple[str, ...]
    needs: tuple[str, ...]
    files: tuple[str, ...]
    path: Path

    @property
    def missing(self) -> list[str]:
        """The modules that its tests need and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant, check or list the faults; return 1 where one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.net.replant", description="Plant faults that were mended.")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults that have this in their names or files")
    parser.add_argument("--check", action="store_true", help="only whether they apply and their tests are there")
    parser.add_argument("--list", action="store_true", help="only what they are")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="faults at a time")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in read_faults() if options.only in " ".join((fault.name, *fault.files))]
    if options.list:
        print(*(f"{fault.name} ({fault.mended}): {fault.words}" for fault in chosen), sep="\n")
        return 0
    faults = [fault for fault in chosen if not fault.missing]
    for fault in chosen:
        if fault.missing:
            print(f"{fault.name} is passed over: {', '.join(fault.missing)} is not installed")
    problems = check(faults) if options.check else plant(faults, options.jobs)
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    if problems:
        name, problem = next(iter(problems.items()))
        print(f"{len(problems)} of {len(faults)} not caught, the first is {name}: {problem}")
        return 1
    print(f"{len(faults)} faults can be planted" if options.check else f"{len(faults)} faults planted, all caught")
    return 0


def read_faults(folder: Path | None = None) -> list[Fault]:
    """Return all faults, by their names. Raises ValueError for a head that is not complete."""
    return [_read(path) for path in sorted((folder or FAULTS).glob("*.patch"))]


def _read(path: Path) -> Fault:
    text = path.read_text(encoding="utf-8")
    head, mark, _ = text.partition(_DIFF)
    lines = (line.partition(": ") for line in head.splitlines() if line.strip())
    said = {key: value.strip() for key, _, value in lines}
    if not mark or not all(map(said.get, _HEAD)) or said.keys() - {*_HEAD, "Needs"}:
        raise ValueError(
            f"{path.name}: above the diff stand the lines {', '.join(_HEAD)}, and Needs where it is needed"
        )
    tests, needs, files = said["Test"].split(), said.get("Needs", "").split(), _FILE.findall(text)
    return Fault(path.stem, said["Fault"], said["Mended"], tuple(tests), tuple(needs), tuple(files), path)


def check(faults: Sequence[Fault]) -> dict[str, str]:
    """Return, by names, why faults cannot be planted: they do not apply to this checkout, or tests are missing."""
    with ThreadPoolExecutor() as pool:
        refused = list(pool.map(lambda fault: _git_apply(fault, ROOT, "--check"), faults))
    # Not by threads: several that parse at once fail in Python 3.11 ("AST constructor recursion depth mismatch").
    found = [problem or _missing_tests(fault) for fault, problem in zip(faults, refused, strict=True)]
    return {fault.name: problem for fault, problem in zip(faults, found, strict=True) if problem}


def plant(faults: Sequence[Fault], jobs: int) -> dict[str, str]:
    """Return, by names, why faults are not caught. Each is planted in one of `jobs` copies of the checkout."""
    there = sorted({test for fault in faults for test in fault.tests if _is_there(test)})
    with ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        jobs = max(1, min(jobs, len(faults)))
        for _ in range(jobs):
            copies.put(stack.enter_context(_copied()))

        def in_a_copy(work: Callable[[Path, _Given], _Found], given: _Given) -> _Found:
            copy = copies.get()
            try:
                return work(copy, given)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            parts = [there[number::jobs] for number in range(jobs)]
            fails = set().union(*pool.map(partial(in_a_copy, _failing), parts))
            found = dict(
                zip((fault.name for fault in faults), pool.map(partial(in_a_copy, plant_in), faults), strict=True)
            )
    for fault in faults:
        if wrong := fails.intersection(map(_without_case, fault.tests)):
            found[fault.name] = f"{min(wrong)} fails without the fault, too"
    return {name: problem for name, problem in found.items() if problem}


def _failing(copy: Path, tests: Sequence[str]) -> set[str]:
    """Return the tests that fail without a fault, by their names without a case; all where pytest does not run them."""
    if not tests:
        return set()
    try:
        code, said = _run(copy, tests, seconds=_SECONDS * len(tests))
    except subprocess.TimeoutExpired:
        return {*map(_without_case, tests)}
    return {*_FAILED.findall(said)} if code in (0, 1) else {*map(_without_case, tests)}


def plant_in(copy: Path, fault: Fault) -> str:
    """Plant a fault in a copy, run its tests, take the fault away again; return why it is not caught, or ""."""
    if problem := _missing_tests(fault) or _git_apply(fault, copy):
        return problem
    _forget_bytecode(copy, fault)
    try:
        code, said = _run(copy, fault.tests, "-x")
    except subprocess.TimeoutExpired:
        return f"its tests did not end within {_SECONDS} s"
    finally:
        _git_apply(fault, copy, "--reverse")
        _forget_bytecode(copy, fault)
    if code == 1 and _HAS_FAILED.search(said):
        return ""
    return f"pytest ends with {code}: {said.splitlines()[-1] if said else 'nothing is said'}"


def _run(copy: Path, tests: Sequence[str], *options: str, seconds: int = _SECONDS) -> tuple[int, str]:
    """Run tests of a copy on its own code: pytest's exit code and what it says. Raises TimeoutExpired.

    What a test has started and left running, a server say, ends with it.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, *options, *tests],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (copy, copy / "serving", copy / "lab")))},
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return code, said.read().decode(errors="replace").strip()


def _git_apply(fault: Fault, folder: Path, *options: str) -> str:
    """Return why a patch does not apply to a folder, or ""."""
    # A copy is no repository, and must not become a part of one that is above it.
    environment: Mapping[str, str] = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        ["git", "apply", *options, str(fault.path)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    return f"the patch does not apply: {done.stderr.strip().splitlines()[0]}" if done.returncode else ""


def _forget_bytecode(copy: Path, fault: Fault) -> None:
    """Remove what Python has compiled: it knows a file by its size and second, which a patch need not change."""
    for file in fault.files:
        if file.endswith(".py"):
            Path(importlib.util.cache_from_source(str(copy / file))).unlink(missing_ok=True)


def _missing_tests(fault: Fault) -> str:
    """Return which of its tests is not there, or ""."""
    return next((f"there is no test {test}" for test in fault.tests if not _is_there(test)), "")


def _is_there(test: str) -> bool:
    file, _, name = _without_case(test).partition("::")
    return name in _tests_of(file)


def _without_case(test: str) -> str:
    return test.partition("[")[0]


@cache
def _tests_of(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@contextmanager
def _copied() -> Iterator[Path]:
    """Copy what the repository has or is about to have: files that git knows or does not ignore, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-replant-") as folder:
        copy = Path(folder, "checkout")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        yield copy


if __name__ == "__main__":
    sys.exit(main())
