"""A process that reads and decodes pictures into slots of memory that it shares with the one that started it.

It takes numbers of files from a pipe that all such processes read, and ends when that is closed: at the end of the
files, and when the process that started it is gone. Its threads are those of `Loader`: few of them, so that they seldom
wait for each other's interpreter.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.job import LoaderEnded, LoaderJob, Names, read_job, slot_line
from vgg16gpu.pictures.loading.pace import SWITCHING, Pace, Seconds
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.loading.worker import DecodeThread
from vgg16gpu.pictures.slots import Closed, Slot

NUMBER_NBYTES: Final = 8  # of a file in the pipe
ORDER: Final = "little"
_TOGETHER: Final = 4  # files that a thread takes at once


def main() -> None:
    """Run as `processes.py` starts it: with the descriptors of the job, the ring, the files and the answers."""
    job, memory, free, files, answers = map(int, sys.argv[1:])
    sys.setswitchinterval(SWITCHING)
    child = LoaderChild(*read_job(job), (memory, free, None), files, answers)
    try:
        child.run()
    except BrokenPipeError:  # nobody wants the answers any more
        return


class LoaderChild:
    """The threads of this process: `worker.Loading`."""

    def __init__(
        self, job: LoaderJob, names: Names, ring: tuple[int, int, int | None], files: int, answers: int
    ) -> None:
        """Attach to the slots; files, answers: descriptors; the first does not block."""
        self.files: Sequence[str] = names
        self.listing = Listing(())
        self.spec, self.first = job.spec, job.first
        self.ring = SharedBufferPool(job.nbytes, job.count, job.rows, job.room_nbytes, ring)
        self._job, self._from, self._to = job, files, answers
        self._lock = threading.Lock()
        self._pace = Pace()
        self._threads: list[threading.Thread] = []
        self._seconds, self._decoded = Seconds(), 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Load until there are no more files. Raises what a thread has raised."""
        self._begin(1 if self._job.begins_alone else self._job.threads)
        for thread in self._threads:  # it grows while they run
            thread.join()
        if self._error:
            raise self._error
        self._send(LoaderEnded(self._decoded, len(self._threads), self._seconds).line())

    def submit(self, slot: Slot) -> None:
        """See Loading."""
        self._send(slot_line(slot))

    def has_loaded(self, wall: float) -> None:
        """See Loading. If a thread is alone and slow, all others begin."""
        if len(self._threads) < self._job.threads and self._pace.is_slow(wall, is_waited_for=True):
            self._begin(self._job.threads - len(self._threads))

    def wait_for_turn(self, worker: DecodeThread, index: int) -> None:  # noqa: ARG002 - as Loading has it
        """Raise RuntimeError: only files of numbers wait, and processes load none."""
        raise RuntimeError(f"'{self.files[index]}' waits for its turn; files of numbers are not loaded by processes")

    def _begin(self, count: int) -> None:
        begun = [threading.Thread(target=self._work, name="vgg16gpu-decode") for _ in range(count)]
        self._threads += begun
        for thread in begun:
            thread.start()

    def _work(self) -> None:
        worker = None
        try:
            worker = DecodeThread(self)
            while numbers := self._next(worker):
                for number in numbers:
                    worker.load(number)
            worker.flush()
        except Closed:
            pass
        except BrokenPipeError as error:  # nobody wants the answers any more
            self._error = error
        except BaseException as error:
            # Its files would never be told, and everybody would wait for them.
            sys.stderr.write(f"vgg16gpu: a thread that decodes failed: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        with self._lock:
            if worker is not None:
                self._seconds.add(worker.seconds)
                self._decoded += worker.decoded

    def _next(self, worker: DecodeThread) -> list[int]:
        """Wait for the numbers of the next files and return them; none at the end."""
        while True:
            try:
                found = os.read(self._from, NUMBER_NBYTES * _TOGETHER)
            except BlockingIOError:
                worker.flush()  # what lies there may be what everybody waits for
                start = time.perf_counter()
                self._wait_for_files()
                worker.seconds.waiting += time.perf_counter() - start
                continue
            return [
                int.from_bytes(found[start : start + NUMBER_NBYTES], ORDER)
                for start in range(0, len(found), NUMBER_NBYTES)
            ]

    def _wait_for_files(self) -> None:
        waits = select.poll()  # of any descriptor, where select() takes those below 1024
        waits.register(self._from, select.POLLIN)
        waits.poll()

    def _send(self, line: bytes) -> None:
        with self._lock:
            while line:
                line = line[os.write(self._to, line) :]
