"""Decoding alone by the processes that load many pictures for a GPU, into slots that go back at once."""

from __future__ import annotations

import resource
import time
from itertools import chain, islice
from typing import Final, NamedTuple

from testbench.pipeline.loading import DECODING
from testbench.pipeline.stage import Place, StageTime
from testbench.pipeline.wanted import Work
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.pictures.loading.processes import ProcessLoader
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.runtime.answers.folder import FilePipeline

BY_PROCESSES: Final = f"{DECODING}, by processes"


class _Round(NamedTuple):
    """Pictures behind those that filled the ring, and their seconds: of the wall clock, and of all processors."""

    pictures: int
    wall: float
    cpu: float


def measure_process_loading(work: Work) -> StageTime | None:
    """All pictures, `repeats` times, as fast as they come once the ring is full; None where a run has no processes.

    The start of the processes is in no figure: a whole run builds its engine meanwhile. Raises InputError where a
    folder has too few pictures to fill the ring.
    """
    rounds, threads = list[_Round](), 0
    for _ in range(work.wanted.repeats):
        with FilePipeline(work.listing, work.spec, for_gpu=True) as folder:
            loader, ring = folder.loader, folder.ring
            if not (isinstance(loader, ProcessLoader) and isinstance(ring, SharedBufferPool)):
                return None
            threads = loader.threads
            rounds.append(_run(loader, ring))
    count = len(work.files)
    wall = tuple(each.wall * count / each.pictures for each in rounds)
    cpu = tuple(each.cpu * count / each.pictures for each in rounds)
    return StageTime(BY_PROCESSES, Place.CORES, count, wall, cpu, threads, decode=CPU)


def _run(loader: ProcessLoader, ring: SharedBufferPool) -> _Round:
    slots = (slot for slot in loader if slot)
    full = list(islice(slots, ring.count - loader.threads))  # each thread may have one that is not full
    begun, busy = time.perf_counter(), _busy()
    pictures = heard = 0
    for slot in chain(full, slots):
        pictures += 0 if slot in full else len(slot.rows)
        heard += len(slot.ends)
        ring.give_back(slot)
        loader.answered(heard)
    wall = time.perf_counter() - begun
    loader.close()
    if not pictures:
        raise InputError("--pictures: there are too few pictures to measure the processes that decode them")
    return _Round(pictures, wall, _busy() - busy)


def _busy() -> float:
    """Seconds of processors: of this process, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime
