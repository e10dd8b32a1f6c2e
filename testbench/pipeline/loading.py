"""Reading and decoding alone: the loader's own threads, into slots that nobody takes anything from."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from testbench.pipeline.stage import Place, Samples, StageTime, timed
from testbench.pipeline.wanted import Work
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.pictures.content import read_file
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.loading.pace import SWITCHING
from vgg16gpu.pictures.slots import BufferPool, Bytes, Slot
from vgg16gpu.runtime.answers.folder import SPARE_SLOTS, default_threads, slot_nbytes

READING: Final = "reading"
DECODING: Final = "decoding"  # pixels as they are, for a device that resizes
RESIZED: Final = "decoding, resized"  # by Pillow, where it was decoded
_COUNTS: Final = (1, 2, 4, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)  # threads


def measure_loading(
    work: Work, cores: int, memory: Bytes, *, counts: Sequence[bool], say: Callable[[str], None]
) -> Iterator[StageTime]:
    """Reading, and decoding by one thread to one a core, in both forms.

    memory: for the slots, as large as `memory_nbytes`. counts: which form a whole run here has, True where it leaves
    resizing to the device, by as many threads as it has; none where processes decode.
    """
    own, repeats = _own_threads(work), work.wanted.repeats
    say("reading")
    samples = timed(repeats, lambda: _read_all(work.files, own))
    yield StageTime(READING, Place.FILES, len(work.files), samples.wall, samples.cpu, own, decode=CPU)
    for name, as_they_are in ((RESIZED, False), (DECODING, True)):
        for threads in thread_counts(cores, own):
            files = _share(work.files, threads, cores)
            say(f"{name}, {threads} {'thread' if threads == 1 else 'threads'}")
            samples = _decoding(work, files, threads, memory, as_they_are=as_they_are)
            is_own = threads == own and as_they_are in counts
            yield StageTime(name, Place.CORES, len(files), samples.wall, samples.cpu, threads, is_own, decode=CPU)


def thread_counts(cores: int, own: int) -> list[int]:
    """How many threads to try: up to the cores, and as many as a whole run has."""
    return sorted({*(count for count in _COUNTS if count <= cores), own})


def memory_nbytes(work: Work, cores: int) -> int:
    """Of the slots for the most threads that are tried."""
    return slot_nbytes(work.spec) * (max(thread_counts(cores, _own_threads(work))) + SPARE_SLOTS)


def run_through(loader: Loader) -> None:
    """Run a loader from its start to its end; each slot goes back to the ring at once."""
    loader.start()
    try:
        for slot in loader:
            if slot is not None:
                loader.ring.give_back(slot)
    finally:
        loader.close()


def loader_into(
    memory: Bytes, listing: Listing, spec: InputSpec, threads: int, *, as_they_are: bool, slots: int = 0
) -> Loader:
    """A loader that waits for nothing but a slot of `memory`: threads + some, or `slots` of them."""
    ring = BufferPool(slot_nbytes(spec), slots or threads + SPARE_SLOTS)
    ring.pin(lambda nbytes: memory[:nbytes], takes_pictures=as_they_are)
    return Loader(listing, spec, ring, threads, window=len(listing.files) + 1)


def filled_slots(work: Work, memory: Bytes, count: int, *, as_they_are: bool) -> list[Slot]:
    """At most `count` slots of `memory` with the first pictures. Raises InputError where none can be read."""
    loader = loader_into(memory, work.listing, work.spec, 1, as_they_are=as_they_are, slots=count + 1)
    return full_slots(work, loader, count)


def full_slots(work: Work, loader: Loader, count: int) -> list[Slot]:
    """At most `count` slots of a loader, whose ring has more. Raises InputError where no picture can be read."""
    found: list[Slot] = []
    loader.start()
    try:
        for slot in loader:
            if slot is not None and slot.rows:
                found.append(slot)
            elif slot is not None:
                loader.ring.give_back(slot)
            if len(found) > count:
                break
    finally:
        loader.close()
    if not found:
        raise InputError(f"--pictures '{work.wanted.folder}': no picture can be read; `infer` says why of each")
    largest = max(len(slot.rows) for slot in found)  # a run hands over its first picture by itself
    return [slot for slot in found if 2 * len(slot.rows) > largest][:count]


def _decoding(work: Work, files: tuple[str, ...], threads: int, memory: Bytes, *, as_they_are: bool) -> Samples:
    listing, loaders = replace(work.listing, files=files), list[Loader]()

    def prepare() -> None:
        loaders[:] = [loader_into(memory, listing, work.spec, threads, as_they_are=as_they_are)]

    with switching_as_in_a_run():
        return timed(work.wanted.repeats, lambda: run_through(loaders[0]), prepare)


@contextmanager
def switching_as_in_a_run() -> Iterator[None]:
    """Threads give the interpreter to each other as often as while files are classified."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCHING, usual))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _share(files: tuple[str, ...], threads: int, cores: int) -> tuple[str, ...]:
    """The first files, as many as so many threads decode while all cores decode all."""
    return files[: max(1, min(len(files), -(-len(files) * threads // cores)))]


def _own_threads(work: Work) -> int:
    """As many as a whole run has."""
    return min(default_threads(), len(work.files))


def _read_all(files: Sequence[str], count: int) -> None:
    threads = [threading.Thread(target=_read, args=(files[i::count],)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(files: Sequence[str]) -> None:
    for file in files:
        with suppress(InputError):  # its row says so in a whole run
            read_file(file)
