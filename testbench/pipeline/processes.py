"""Reading and decoding in one process a core: what the hardware does where no interpreter's lock is shared.

A whole run decodes by threads. Where these are slower than as many processes, the lock between them is what costs;
where both are as fast, it is the hardware. Each process runs a loader of one thread over its share of the files.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from testbench.pipeline.loading import loader_into, run_through, switching_as_in_a_run
from testbench.pipeline.stage import Place, Samples, StageTime
from testbench.pipeline.wanted import Work
from vgg16gpu.errors import Error
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.runtime.answers.folder import SPARE_SLOTS, slot_nbytes

WITHOUT_LOCK: Final = "decoding, without a lock"
_PATIENCE: Final = 300.0  # seconds that a process may take for its share
_WARM_UP: Final = 4  # pictures, before the first repeat: modules are imported, memory is there


def measure_processes(work: Work, cores: int, *, as_they_are: bool) -> StageTime:
    """All pictures by one process a core, `repeats` times. Raises Error where a process dies or hangs."""
    count = min(cores, len(work.files))
    wall, cpu = [], []
    with ExitStack() as stack:
        workers = [stack.enter_context(_Decoding(work, i, count, as_they_are)) for i in range(count)]
        _ask(workers, "warm up")
        for _ in range(work.wanted.repeats):
            start = time.perf_counter()
            cpu.append(sum(_ask(workers, "decode")))
            wall.append(time.perf_counter() - start)
    samples = Samples(tuple(wall), tuple(cpu))
    return StageTime(WITHOUT_LOCK, Place.CORES, len(work.files), samples.wall, samples.cpu, count, False, decode=CPU)


class _Decoding:
    """A process with its share of the files; leaving the `with` block ends it."""

    def __init__(self, work: Work, number: int, count: int, as_they_are: bool) -> None:
        spawning = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads that are here
        self.connection, theirs = spawning.Pipe()
        files = work.files[number::count]
        arguments = (theirs, replace(work.listing, files=files), work.spec, as_they_are)
        self._process = spawning.Process(target=_serve, args=arguments, daemon=True)
        self._theirs = theirs

    def __enter__(self) -> _Decoding:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join()


def _ask(workers: Sequence[_Decoding], what: str) -> list[float]:
    """All at once: the seconds of processor time that each took."""
    try:
        for worker in workers:
            worker.connection.send(what)
        return [_answer(worker.connection) for worker in workers]
    except (EOFError, ConnectionError) as error:
        raise Error(f"{WITHOUT_LOCK}: a process that decodes has died; its last words stand above") from error


def _answer(connection: Connection) -> float:
    if not connection.poll(_PATIENCE):
        raise Error(f"{WITHOUT_LOCK}: a process gave no answer in {_PATIENCE:g} s; is the machine overloaded?")
    return float(connection.recv())


def _serve(connection: Connection, listing: Listing, spec: InputSpec, as_they_are: bool) -> None:
    """In the process: decode when asked, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end ends this process
    memory = np.empty(slot_nbytes(spec) * (1 + SPARE_SLOTS), np.uint8)
    memory.fill(0)  # so that it is there, as pinned memory is
    few = replace(listing, files=listing.files[:_WARM_UP])
    with connection, switching_as_in_a_run():
        while True:
            try:
                asked = connection.recv()
            except (EOFError, ConnectionError):
                return
            start = time.process_time()
            files = listing if asked == "decode" else few
            run_through(loader_into(memory, files, spec, 1, as_they_are=as_they_are))
            connection.send(time.process_time() - start)
