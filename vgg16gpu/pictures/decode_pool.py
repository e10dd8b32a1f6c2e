"""Many files as network inputs: images are decoded by worker processes, and those that cannot be are put aside."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vgg16gpu.errors import Error, InputError
from vgg16gpu.pictures.images import IMAGE_SUFFIXES
from vgg16gpu.pictures.inputs import InputSpec, NamedInput, read_inputs

HANDFUL = 8  # images; so many are decoded sooner than a process is started
MAX_PROCESSES = 16
CHUNK = 4  # images that a process is given at a time
AHEAD = 4  # chunks that are on their way for each process: it goes on while the engine is built


@dataclass(frozen=True)
class Unreadable:
    """An image file that is none, or is broken."""

    name: str
    problem: str


@dataclass(frozen=True, eq=False)
class Decoded:
    """What became of an image file, and the seconds that it took."""

    result: NamedInput | Unreadable
    seconds: float


@dataclass(eq=False)
class Reader:
    """Reads `files` (no folders; "-" is standard input) in order, images with that many processes, 0 for none."""

    files: Sequence[str]
    spec: InputSpec
    processes: int
    unreadable: list[Unreadable] = field(default_factory=list)
    decoded: int = 0
    decode_seconds: float = 0.0  # of all processes together

    def inputs(self) -> Generator[NamedInput, None, None]:
        """Every input. Images that cannot be read go to `unreadable`; other files raise InputError.

        Close the iterator when you leave it early, so that the processes end.
        """
        for is_image, files in itertools.groupby(self.files, _is_image):
            if is_image:
                yield from self._images(list(files))
            else:
                yield from read_inputs(list(files), self.spec)

    @property
    def decode_rate(self) -> float | None:
        """Images a second, of all processes at work together; None if there was none to decode."""
        return self.decoded * max(1, self.processes) / self.decode_seconds if self.decode_seconds else None

    def _images(self, files: Sequence[str]) -> Iterator[NamedInput]:
        decoded = decode_apart(files, self.spec, self.processes) if self.processes else _each(files, self.spec)
        for image in decoded:
            self.decode_seconds += image.seconds
            if isinstance(image.result, Unreadable):
                self.unreadable.append(image.result)
            else:
                self.decoded += 1
                yield image.result


def useful_processes(files: Iterable[str]) -> int:
    """How many processes can help to decode, if there are the cores: none for a handful of images."""
    images = sum(map(_is_image, files))
    return 0 if images <= HANDFUL else min(MAX_PROCESSES, images // CHUNK)


def decode_apart(files: Sequence[str], spec: InputSpec, processes: int) -> Iterator[Decoded]:
    """Every image in order, decoded in processes of their own. Raises Error when one of these is killed."""
    # Only here: nobody else pays for the imports.
    from concurrent.futures import Future, ProcessPoolExecutor  # noqa: PLC0415
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    # Spawned, not forked: CUDA does not survive a fork, and there are threads.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin_worker)
    waiting: deque[Future[list[Decoded]]] = deque()
    try:
        for first in range(0, len(files), CHUNK):
            waiting.append(pool.submit(decode, files[first : first + CHUNK], spec))
            if len(waiting) == AHEAD * processes:
                yield from waiting.popleft().result()
        for chunk in waiting:
            yield from chunk.result()
    except BrokenProcessPool as error:
        raise Error(
            "a process that decodes images has ended before its time (killed for want of memory?); "
            "take fewer of them: --workers 1, or 0 for none"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def decode(files: Sequence[str], spec: InputSpec) -> list[Decoded]:
    """What becomes of each image file."""
    return list(_each(files, spec))


def _each(files: Iterable[str], spec: InputSpec) -> Iterator[Decoded]:
    for file in files:
        start = time.perf_counter()
        result: NamedInput | Unreadable
        try:
            (result,) = read_inputs([file], spec)
        except InputError as error:
            result = Unreadable(file, str(error))
        yield Decoded(result, time.perf_counter() - start)


def _is_image(file: str) -> bool:
    return Path(file).suffix.lower() in IMAGE_SUFFIXES


def _begin_worker() -> None:
    """Ctrl-C is for the parent to handle; and when it is gone, however that came, so is this process."""
    from multiprocessing import parent_process  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:  # not a worker
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
