"""Fill buffers with the samples of files, by threads of this process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.pace import Pace, Seconds
from vgg16gpu.pictures.loading.worker import DecodeThread
from vgg16gpu.pictures.slots import BufferPool, Closed, SampleRow, Slot

T = TypeVar("T")


class InOrder(Generic[T]):
    """Values by (file, sample), from `first` on. A file is over when `end` has told how many samples it holds."""

    def __init__(self, first: tuple[int, int] = (0, 0)) -> None:
        self.file, self._sample = first  # `file`: the first that is not over
        self._values: dict[tuple[int, int], T] = {}
        self._ends: dict[int, int] = {}

    def add(self, file: int, sample: int, value: T) -> None:
        """Add a value; values before it may come later."""
        self._values[file, sample] = value

    def end(self, file: int, samples: int) -> None:
        """Set the number of samples of a file."""
        self._ends[file] = samples

    def ready(self) -> list[T]:
        """Return the values whose turn has come, each once."""
        found: list[T] = []
        while True:
            if (value := self._values.pop((self.file, self._sample), None)) is not None:
                found.append(value)
                self._sample += 1
            elif self._ends.get(self.file) == self._sample:
                del self._ends[self.file]
                self.file, self._sample = self.file + 1, 0
            else:
                return found


WINDOW = 4096  # files from the first that is not answered to the last that is begun
THREADS = 32  # at most, unless the user wants more
THREADS_EACH = 4  # of a process, where several load

_END = object()


class Loader:
    """Threads that fill slots with the samples of the files listed, as kernels read them.

    first: the (file, sample) to begin with. window: how many files are begun before the first of them is answered.
    takes_back: whether rows may be asked for `again`; then the threads stay until all is answered. begins_alone: one
    thread begins, and all others join it if it is slow: for those who only read, threads that take the interpreter from
    each other at every system call are slower than one (60 us a file, 100 with two, 180 with 14).

    Files of numbers are read one at a time, in their turn: one may hold more samples than memory has room for.
    Iterate over it once, and `close` it. The iterator gives filled slots, which go back to `ring`; and None where
    nobody can go on before all that was given out is answered (`answered`). What a thread raises that is no InputError
    comes out of the iterator.
    """

    def __init__(
        self,
        listing: Listing,
        spec: InputSpec,
        ring: BufferPool,
        threads: int,
        first: tuple[int, int] = (0, 0),
        window: int = WINDOW,
        *,
        takes_back: bool = False,
        begins_alone: bool = False,
    ) -> None:
        self.listing, self.spec, self.ring = listing, spec, ring
        self.files = listing.files
        self.seconds = Seconds()
        self.decoded = 0  # pictures
        self.first = first
        self._window, self._takes_back = window, takes_back
        self._most, self._begins_alone = threads, begins_alone
        self._again: deque[_Again] = deque()
        self._queue: SimpleQueue[Slot | BaseException | object | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._position = self._answered = first[0]
        self._waiting = 0
        self._closed = False
        self._has_row: bool | None = None  # whether there is anything to compute; None while nobody knows
        self._threads: list[threading.Thread] = []
        self._alive = 0
        self._pace = Pace()

    @property
    def threads(self) -> int:
        """Return how many have begun."""
        return len(self._threads)

    @property
    def decode_rate(self) -> float | None:
        """Pictures a second of all threads at work together; None if there was none to decode."""
        seconds = self.seconds.reading + self.seconds.decoding
        return self.decoded * self.threads / seconds if self.decoded else None

    def start(self) -> None:
        """Begin to fill slots."""
        with self._lock:
            self._begin(1 if self._begins_alone else self._most)

    def has_loaded(self, wall: float) -> None:
        """Note that a thread loaded a picture in `wall` seconds. If it is alone and slow, all others begin."""
        if len(self._threads) < self._most and self._pace.is_slow(wall, is_waited_for=self._queue.empty()):
            with self._lock:
                if not self._closed:
                    self._begin(self._most - len(self._threads))

    def _begin(self, count: int) -> None:
        names = range(len(self._threads), len(self._threads) + count)
        begun = [threading.Thread(target=self._work, name=f"vgg16gpu-decode-{name}") for name in names]
        self._threads += begun
        self._alive += count
        for thread in begun:
            thread.start()

    def __iter__(self) -> Iterator[Slot | None]:
        while (item := self._queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            assert item is None or isinstance(item, Slot)
            yield item

    def has_row(self) -> bool:
        """Wait for the first sample, the end, or until all wait for answers; return whether there is a sample."""
        with self._lock:
            while self._has_row is None:
                self._changed.wait()
            return self._has_row

    def answered(self, files: int) -> None:
        """Note that the first `files` files have been given out: later ones may begin."""
        with self._lock:
            self._answered = files
            if self._waiting:
                self._changed.notify_all()

    def again(self, rows: Iterable[SampleRow]) -> None:
        """Read and decode these once more: what was to compute them has failed. Of a loader that `takes_back`."""
        samples: dict[int, set[int]] = {}
        for row in rows:
            samples.setdefault(row.file, set()).add(row.sample)
        with self._lock:
            self._again += [_Again(file, frozenset(samples[file])) for file in sorted(samples)]
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads, once each is done with its picture. Safe to call twice."""
        self.ring.close()
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        worker = None
        try:
            worker = DecodeThread(self)
            while (piece := self._next(worker)) is not None:
                worker.load(piece) if isinstance(piece, int) else worker.load_again(*piece)
            worker.flush()
        except Closed:
            pass
        except BaseException as error:
            self._fail(error)
        with self._lock:
            if worker is not None:
                self.seconds.add(worker.seconds)
                self.decoded += worker.decoded
            self._leave()

    def _next(self, worker: DecodeThread) -> int | _Again | None:
        """Return the number of the next file, or a piece to read again; None at the end.

        Waits while too many files are not answered.
        """
        while True:
            with self._lock:
                if self._closed:
                    raise Closed
                if self._again:
                    return self._again.popleft()
                if self._may_go_on():
                    if self._position == len(self.files):
                        return None
                    self._position += 1
                    return self._position - 1
            self._wait(worker, self._may_go_on)

    def _may_go_on(self) -> bool:
        """Return whether a thread has something to read, or may end."""
        if self._again:
            return True
        if self._position == len(self.files):
            return not self._takes_back or self._answered == len(self.files)
        return self._position - self._answered < self._window

    def wait_for_turn(self, worker: DecodeThread, index: int) -> None:
        """Wait until every file before this one has its answers; their pieces to read again are read meanwhile."""
        while True:
            self._wait(worker, lambda: self._answered == index or bool(self._again))
            with self._lock:
                if not self._again:
                    return
                piece = self._again.popleft()
            worker.load_again(*piece)

    def _wait(self, worker: DecodeThread, is_over: Callable[[], bool]) -> None:
        worker.flush()  # what lies there may be what everybody waits for
        start = time.perf_counter()
        with self._lock:
            if not is_over():
                self._waiting += 1
                self._tell_when_stuck()
                while not (is_over() or self._closed):
                    self._changed.wait()
                self._waiting -= 1
            if self._closed:
                raise Closed
        worker.seconds.waiting += time.perf_counter() - start

    def _leave(self) -> None:
        """Note that one of the threads or processes that fill slots is done."""
        self._alive -= 1
        self._tell_when_stuck()
        if not self._alive:
            self._decide(has_row=bool(self._has_row))
            self._queue.put(_END)

    def _tell_when_stuck(self) -> None:
        if self._waiting == self._alive > 0:
            self._tell_nothing_more()

    def _tell_nothing_more(self) -> None:
        """Notify the reader that nothing more comes before what was given out is answered."""
        self._decide(has_row=True)  # perhaps, among the files that are left
        self._queue.put(None)

    def _fail(self, error: BaseException) -> None:
        """Queue an error, which the reader raises."""
        self._decide(has_row=True)  # so that it reads
        self._queue.put(error)

    def _decide(self, *, has_row: bool) -> None:
        """Set the answer of `has_row`."""
        with self._lock:
            self._has_row = has_row
            self._changed.notify_all()

    def submit(self, slot: Slot) -> None:
        """Queue a full slot."""
        if slot.rows and not self._has_row:
            self._decide(has_row=True)
        self._queue.put(slot)


class _Again(NamedTuple):
    """Samples of a file that are read once more."""

    file: int
    samples: frozenset[int]
