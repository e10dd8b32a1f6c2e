"""Makes a wheel of PyCUDA's unpacked source on all cores.

    python -m vgg16gpu.devices.cuda.install.build SOURCE FOLDER JOBS

Runs where setuptools and numpy can be imported. setuptools compiles the files of an extension one after the other; here
its public method `CCompiler.compile` is called once for each file, in threads, and the rest of the build is setuptools'
own. What is said to people goes to stdout, what setuptools and the compilers say to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeAlias

PERIOD = 5.0  # seconds between two lines of progress

Compile: TypeAlias = Callable[..., list[str]]  # (compiler, sources, options...) -> names of object files


class BuildProgress:
    """How many files of an extension are compiled, told now and then."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._done = self._total = 0

    def begin(self, total: int) -> None:
        """The files of the next extension."""
        with self._lock:
            self._done, self._total = 0, total

    def advance(self) -> None:
        """One file more is compiled."""
        with self._lock:
            self._done += 1

    def tell(self) -> None:
        """One line."""
        with self._lock:
            done, total = self._done, self._total
        if total:
            self._say(f"Compiling PyCUDA: {done} of {total} files, {self._clock() - self._started:.0f} s")

    @contextmanager
    def told_every(self, period: float) -> Iterator[None]:
        """A line every `period` seconds meanwhile: the longest file is long, and silence looks like a failure."""
        finished = threading.Event()

        def repeat() -> None:
            while not finished.wait(period):
                self.tell()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()


def in_parallel(compile_all: Compile, jobs: int, progress: BuildProgress) -> Compile:
    """A `CCompiler.compile` that calls the given one for each file, `jobs` at a time, large files first.

    Object files come in the order of the sources. The first failure is raised, and what has not begun is left out.
    """

    def compile_each(compiler: Any, sources: Sequence[str], *args: Any, **options: Any) -> list[str]:
        def compile_one(source: str) -> list[str]:
            objects = compile_all(compiler, [source], *args, **options)
            progress.advance()
            return objects

        progress.begin(len(sources))
        with ThreadPoolExecutor(jobs) as pool:
            # The largest takes as long as six others: it must not be the one that all wait for at the end.
            ordered = sorted(sources, key=os.path.getsize, reverse=True)
            futures = {source: pool.submit(compile_one, source) for source in ordered}
            for future in wait(futures.values(), return_when=FIRST_EXCEPTION).not_done:
                future.cancel()
        failures = [future.exception() for future in futures.values() if not future.cancelled()]
        if failure := next(filter(None, failures), None):
            raise failure
        return [name for source in sources for name in futures[source].result()]

    return compile_each


def build_wheel(source: str, folder: str, jobs: int, progress: BuildProgress) -> None:
    """Write the wheel of the source tree into `folder`. Raises whatever setuptools raises."""
    backend = importlib.import_module("setuptools.build_meta")  # first: it puts its own distutils in place
    compiler = importlib.import_module("distutils.ccompiler").CCompiler
    compiler.compile = in_parallel(compiler.compile, jobs, progress)
    os.chdir(source)
    with progress.told_every(PERIOD):
        backend.__legacy__.build_wheel(folder)  # the one for a setup.py that imports what lies beside it
    progress.tell()


def main(arguments: Sequence[str]) -> None:
    """Build, with all that others print sent to stderr."""
    source, folder, jobs = arguments
    with os.fdopen(os.dup(1), "w", buffering=1) as people:
        os.dup2(2, 1)
        build_wheel(source, folder, int(jobs), BuildProgress(lambda line: print(line, file=people)))


if __name__ == "__main__":
    main(sys.argv[1:])
