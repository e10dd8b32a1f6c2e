"""A loader whose files are read and decoded by several processes, of a few threads each.

A dozen threads of one process that each decode a picture in a millisecond spend as long again waiting for the
interpreter, and so does whoever builds an engine beside them. Here these are in processes of their own: they share
slots with this one (`shared.py`), take numbers of files from a pipe, and say in lines what lies where (`messages.py`).
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.child import NUMBER_NBYTES, ORDER
from vgg16gpu.pictures.loading.job import LoaderEnded, LoaderJob, how_it_ended, read_line, start_child
from vgg16gpu.pictures.loading.loader import THREADS_EACH, WINDOW, Loader
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.loading.worker import DecodeThread
from vgg16gpu.pictures.slots import Closed, Slot

_HERE: Final = 8  # files that are loaded here at most, until one of them is a picture
_WRITTEN: Final = select.PIPE_BUF // NUMBER_NBYTES  # numbers that a pipe takes all or none of

_CHILD: Final = "vgg16gpu.pictures.loading.child"


class ProcessLoader(Loader):
    """As `Loader`, for pictures in files, and a device that resizes them.

    threads: of all processes together. The first files are loaded here, until there is one to compute: that tells
    whether the files are any good before the processes run. A process that dies ends the loading with an InputError.
    """

    def __init__(
        self,
        listing: Listing,
        spec: InputSpec,
        ring: SharedBufferPool,
        threads: int,
        first: tuple[int, int] = (0, 0),
        window: int = WINDOW,
        *,
        takes_back: bool = False,
        begins_alone: bool = False,
    ) -> None:
        super().__init__(
            listing,
            spec,
            ring,
            threads,
            first,
            window,
            takes_back=takes_back,
            begins_alone=begins_alone,
        )
        self._shared = ring
        self._children: list[subprocess.Popen[bytes]] = []
        self._heard = first[0]  # files whose ends are told, and those before the first
        self._counts_here = True  # whether what is loaded here is loaded for the first time
        self._begun = 0
        self._deals: int | None = None  # where numbers of files are written; None where all are

    @property
    def threads(self) -> int:
        """Return how many have begun."""
        return self._begun or self._most

    def start(self) -> None:
        """Begin to fill slots. Raises InputError where no process can be started; close it then."""
        count = -(-self._most // THREADS_EACH)
        self._alive = 1 + count
        files, self._deals = os.pipe()
        os.set_blocking(files, False)
        os.set_blocking(self._deals, False)
        self._start_thread(self._work, "here")
        job = self._job(-(-self._most // count)).written(self.files)
        try:
            for number in range(count):
                self._start_child(number, job, files)
        except OSError as error:
            raise InputError(
                f"no process can be started to decode pictures ({error}); with --workers {THREADS_EACH} none is needed"
            ) from error
        finally:
            os.close(job)
            os.close(files)

    def answered(self, files: int) -> None:
        """See Loader."""
        with self._lock:
            self._answered = files
            self._deal()
            self._tell_when_over()
            self._changed.notify_all()

    def close(self) -> None:
        """End the processes, and the threads. Safe to call twice."""
        with self._lock:
            self._closed = True  # who hears the processes end asks for that
            self._end_dealing()
        for child in self._children:
            child.kill()  # it has nothing that anybody wants
        super().close()
        for child in self._children:  # one whose thread has not begun, too
            child.wait()
        self._shared.release()

    def submit(self, slot: Slot) -> None:
        """See Loader: of what is loaded here."""
        self._take(slot, len(slot.ends) if self._counts_here else 0)

    def _job(self, threads: int) -> LoaderJob:
        ring = self._shared
        return LoaderJob(
            self.spec, ring.nbytes, ring.count, ring.rows, ring.room_nbytes, threads, self._begins_alone, self.first
        )

    def _start_child(self, number: int, job: int, files: int) -> None:
        answers, told = os.pipe()
        given = (job, self._shared.memory_file, self._shared.numbers, files, told)
        try:
            child = start_child(_CHILD, given)
        except BaseException:
            os.close(answers)
            raise
        finally:
            os.close(told)
        self._children.append(child)
        self._start_thread(partial(self._hear, child, answers), str(number))

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"vgg16gpu-decoded-{name}")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """Load the first files, then what is asked for `again`."""
        worker = DecodeThread(self)
        try:
            self._load_first(worker)
            while piece := self._next_again():
                worker.load_again(*piece)
                worker.flush()
                with self._lock:
                    self._tell_when_over()
        except Closed:
            pass
        except BaseException as error:
            self._fail(error)
        with self._lock:
            self.seconds.add(worker.seconds)
            self.decoded += worker.decoded
            self._leave()

    def _load_first(self, worker: DecodeThread) -> None:
        position = self.first[0]
        most = min(position + _HERE, len(self.files))
        while position < most and not self._has_row:
            worker.load(position)
            position += 1
            if worker.has_rows:
                worker.flush()
        worker.flush()
        self._counts_here = False
        with self._lock:
            self._position = position
            self._deal()
            self._tell_when_over()

    def _next_again(self) -> tuple[int, frozenset[int]] | None:
        """Wait for a piece to read once more; None when no more can come."""
        with self._lock:
            while self._takes_back and not (self._again or self._closed or self._answered == len(self.files)):
                self._changed.wait()
            return self._again.popleft() if self._again and not self._closed else None

    def _deal(self) -> None:
        """Write the numbers of the files that may be begun, as many as the pipe takes: the rest when some are heard."""
        if self._deals is None or self._counts_here:
            return
        end = min(len(self.files), self._answered + self._window)
        while self._position < end:
            numbers = range(self._position, min(end, self._position + _WRITTEN))
            try:
                os.write(self._deals, b"".join(number.to_bytes(NUMBER_NBYTES, ORDER) for number in numbers))
            except BlockingIOError:
                return
            except BrokenPipeError:  # no process is left: `_hear` says so
                self._end_dealing()
                return
            self._position = numbers.stop
        if self._position == len(self.files):
            self._end_dealing()

    def _end_dealing(self) -> None:
        deals, self._deals = self._deals, None
        if deals is not None:
            os.close(deals)

    def _hear(self, child: subprocess.Popen[bytes], answers: int) -> None:
        """Receive a process's messages, until it ends."""
        ended: LoaderEnded | None = None
        try:
            with os.fdopen(answers, "rb") as lines:
                for line in lines:
                    told = read_line(line, self._shared, self.files)
                    if isinstance(told, LoaderEnded):
                        ended = told
                    else:
                        self._take(told, len(told.ends))
            status = child.wait()
            if ended is None and not self._closed:
                self._fail(InputError(_death(status)))
        except BaseException as error:
            self._fail(error)
        with self._lock:
            if ended:
                self.seconds.add(ended.seconds)
                self.decoded += ended.decoded
                self._begun += ended.threads
            self._leave()

    def _take(self, slot: Slot, ends: int) -> None:
        super().submit(slot)
        with self._lock:
            self._heard += ends
            self._deal()
            self._tell_when_over()

    def _tell_when_over(self) -> None:
        """Notify the reader: all started files arrived, and nothing more comes before they are answered."""
        if self._counts_here or self._again or self._heard < self._position:
            return
        if self._takes_back or self._position < len(self.files):
            self._tell_nothing_more()


def _death(status: int) -> str:
    """Return the message about a process that ended before its work did."""
    return (
        f"a process that decodes pictures {how_it_ended(status)}: a picture may be why, or too little memory. Rows "
        f"that are written stay, and --resume goes on; with --workers {THREADS_EACH} this process decodes by itself"
    )
