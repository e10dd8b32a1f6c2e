"""Files to samples in slots: read, decoded and, where no device does it, fitted by threads of this process.

Each thread takes the next file, and fills a slot of its own until that is full; so slots come in any order, and
`pictures/order.py` puts what they say into the order of the files. Nothing is pickled, and the decoders let go
of the interpreter's lock. What is under way is bounded: bytes by the ring, files by a window.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.inputs import InputSpec, Sample, check_finite, samples
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.pace import Pace, Seconds
from vgg16gpu.pictures.slots import Closed, Failure, Ring, Row, Slot, aligned

WINDOW = 4096  # files from the first that is not answered to the last that is begun
THREADS = 32  # at most, unless the user wants more

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
        ring: Ring,
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
        self._state = threading.Condition()
        self._position = self._answered = first[0]
        self._waiting = 0
        self._closed = False
        self._is_decided = threading.Event()  # whether there is anything to compute
        self._has_row = False
        self._threads: list[threading.Thread] = []
        self._alive = 0
        self._pace = Pace()

    @property
    def threads(self) -> int:
        """How many have begun."""
        return len(self._threads)

    @property
    def decode_rate(self) -> float | None:
        """Pictures a second of all threads at work together; None if there was none to decode."""
        seconds = self.seconds.reading + self.seconds.decoding
        return self.decoded * self.threads / seconds if self.decoded else None

    def start(self) -> None:
        """Begin to fill slots."""
        with self._state:
            self._begin(1 if self._begins_alone else self._most)

    def has_loaded(self, wall: float) -> None:
        """A thread has put a picture into its slot, in so many seconds. If it is alone and slow, all others begin."""
        if len(self._threads) < self._most and self._pace.is_slow(wall, is_waited_for=self._queue.empty()):
            with self._state:
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
        """Whether there is a sample to compute: waits for the first, or for the end, or until all wait for answers."""
        self._is_decided.wait()
        return self._has_row

    def answered(self, files: int) -> None:
        """So many files, from the first on, have been given out: later ones may begin."""
        with self._state:
            self._answered = files
            if self._waiting:
                self._state.notify_all()

    def again(self, rows: Iterable[Row]) -> None:
        """Read and decode these once more: what was to compute them has failed. Of a loader that `takes_back`."""
        samples: dict[int, set[int]] = {}
        for row in rows:
            samples.setdefault(row.file, set()).add(row.sample)
        with self._state:
            self._again += [_Again(file, frozenset(samples[file])) for file in sorted(samples)]
            self._state.notify_all()

    def close(self) -> None:
        """End the threads, once each is done with its picture. Safe to call twice."""
        self.ring.close()
        with self._state:
            self._closed = True
            self._state.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        worker = _Worker(self)
        try:
            while (piece := self._next(worker)) is not None:
                worker.load(piece) if isinstance(piece, int) else worker.load_again(*piece)
            worker.flush()
        except Closed:
            pass
        except BaseException as error:
            self._has_row = True  # the reader shall raise it
            self._is_decided.set()
            self._queue.put(error)
        with self._state:
            self.seconds.add(worker.seconds)
            self.decoded += worker.decoded
            self._alive -= 1
            self._tell_when_stuck()
            if not self._alive:
                self._is_decided.set()
                self._queue.put(_END)

    def _next(self, worker: _Worker) -> int | _Again | None:
        """The number of the file that is next, or what is to be read again; None at the end.

        Waits while too many files are not answered.
        """
        while True:
            with self._state:
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
        """Whether a thread has something to read, or may end."""
        if self._again:
            return True
        if self._position == len(self.files):
            return not self._takes_back or self._answered == len(self.files)
        return self._position - self._answered < self._window

    def wait_for_turn(self, worker: _Worker, index: int) -> None:
        """Until every file before this one has its answers; what of them is to be read again is read meanwhile."""
        while True:
            self._wait(worker, lambda: self._answered == index or bool(self._again))
            with self._state:
                if not self._again:
                    return
                piece = self._again.popleft()
            worker.load_again(*piece)

    def _wait(self, worker: _Worker, is_over: Callable[[], bool]) -> None:
        worker.flush()  # what lies there may be what everybody waits for
        start = time.perf_counter()
        with self._state:
            if not is_over():
                self._waiting += 1
                self._tell_when_stuck()
                while not (is_over() or self._closed):
                    self._state.wait()
                self._waiting -= 1
            if self._closed:
                raise Closed
        worker.seconds.waiting += time.perf_counter() - start

    def _tell_when_stuck(self) -> None:
        if self._waiting == self._alive > 0:
            self._has_row = True  # perhaps, among the files that are left
            self._is_decided.set()
            self._queue.put(None)

    def submit(self, slot: Slot) -> None:
        """A slot is filled."""
        if slot.rows and not self._has_row:
            self._has_row = True
            self._is_decided.set()
        self._queue.put(slot)


class _Again(NamedTuple):
    """Samples of a file that are read once more."""

    file: int
    samples: frozenset[int]


class _Worker:
    """What one thread has in hand."""

    def __init__(self, loader: Loader) -> None:
        self.seconds = Seconds()
        self.decoded = 0
        self._loader, self._ring = loader, loader.ring
        self._decoder = Decoder(loader.spec)
        self._unchecked = replace(loader.spec, allow_nonfinite=True)  # a sample is refused, not its file
        self._slot: Slot | None = None

    def load(self, index: int) -> None:
        """Everything of one file into slots."""
        file = self._loader.files[index]
        if file in self._loader.listing.numbers:
            self._load_numbers(index, file)
        else:
            self._load_picture(index, file)
        if index == self._loader.first[0]:
            self.flush()  # somebody waits to see whether the inputs are any good at all

    def load_again(self, index: int, wanted: frozenset[int]) -> None:
        """Some samples of a file into slots, once more; its end has been told."""
        file = self._loader.files[index]
        if file not in self._loader.listing.numbers:
            self._load_picture(index, file)
            return
        left = set(wanted)
        try:
            for count, (name, sample) in enumerate(samples(file, self._unchecked)):
                if count in left:
                    self._place_checked(index, count, name, sample)
                    left.remove(count)
                if not left:
                    return
            raise InputError(f"'{file}' has fewer samples than before; leave it alone while it is read")
        except InputError as error:
            for count in sorted(left):
                self._fail(index, count, file, str(error))

    def flush(self) -> None:
        """Hand over what is in the slot."""
        if self._slot is not None and not self._slot.is_empty:
            self._loader.submit(self._slot)
            self._slot = None

    def _load_picture(self, index: int, file: str) -> None:
        if self._ring.room_nbytes:
            self._current()  # it is read to there
        start, waited = time.perf_counter(), self.seconds.waiting
        try:
            data, place = self._read(index, file)
            read = time.perf_counter()
            self.seconds.reading += read - start
            self._place_picture(index, file, data, place)
            self.decoded += 1
            end = time.perf_counter() - (self.seconds.waiting - waited)
            self.seconds.decoding += end - read
            self._loader.has_loaded(end - start)
        except InputError as error:
            self._fail(index, 0, file, str(error))
        self._current().ends.append((index, 1))

    def _read(self, index: int, file: str) -> tuple[bytes, Slot | None]:
        """A file's bytes, and the slot at whose free end they lie already, where the device may decode it."""
        contents, slot = self._loader.listing.contents, self._slot
        if contents is not None:
            return contents[index], None
        if self._ring.room_nbytes and slot:
            rest = slot.buffer[slot.used :]
            if (nbytes := self._decoder.read_into(file, rest)) is not None:
                return rest[:nbytes].tobytes(), slot
        return self._decoder.read(file), None

    def _place_picture(self, index: int, file: str, data: bytes, place: Slot | None) -> None:
        decoder, ring = self._decoder, self._ring
        if ring.room_nbytes and self._place_file(index, file, data, place):
            return
        if ring.takes_pictures and (shape := decoder.shape(data)):
            height, width = shape
            nbytes = height * width * decoder.channels
            if nbytes <= ring.nbytes:
                slot = self._with_room("uint8", nbytes)
                if decoder.decode_into(data, slot.rest(nbytes)):
                    self._add(slot, Row(index, 0, file, slot.used, height, width), nbytes)
                    return
        self._place(index, 0, file, decoder.fitted(data, file))

    def _place_file(self, index: int, file: str, data: bytes, place: Slot | None) -> bool:
        """Put a file that the device may decode into a slot as it is; whether it is one. place: as of `_read`."""
        decoder, ring = self._decoder, self._ring
        if (shape := decoder.file_shape(data)) is None:
            return False
        needed = decoder.room_nbytes(*shape)
        if len(data) > ring.nbytes or needed > ring.room_nbytes:
            return False
        slot = self._with_room("uint8", len(data), needed)
        if slot is not place:
            slot.rest(len(data))[:] = np.frombuffer(data, np.uint8)
        self._add(slot, Row(index, 0, file, slot.used, *shape[:2], len(data), shape[2]), len(data), needed)
        return True

    def _load_numbers(self, index: int, file: str) -> None:
        self._loader.wait_for_turn(self, index)
        skipped = self._loader.first[1] if index == self._loader.first[0] else 0
        count, start = 0, time.perf_counter()
        waited = self.seconds.waiting
        try:
            for name, sample in samples(file, self._unchecked):
                if count >= skipped:
                    self._place_checked(index, count, name, sample)
                count += 1
        except InputError as error:
            self._fail(index, max(count, skipped), file, str(error))
            count = max(count, skipped) + 1
        self.seconds.reading += time.perf_counter() - start - (self.seconds.waiting - waited)
        self._current().ends.append((index, count))

    def _place_checked(self, index: int, sample: int, name: str, array: Sample) -> None:
        spec = self._loader.spec
        try:
            if not spec.allow_nonfinite:
                check_finite(array, name, spec.nonfinite_advice)
        except InputError as error:
            self._fail(index, sample, name, str(error))
        else:
            self._place(index, sample, name, array)

    def _place(self, index: int, sample: int, name: str, array: Sample) -> None:
        if self._loader.spec.turns(array.dtype.name):
            array = np.moveaxis(array, -1, 0)
        slot = self._with_room(array.dtype.name, array.nbytes)
        slot.rest(array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._add(slot, Row(index, sample, name, slot.used), array.nbytes)

    def _fail(self, index: int, sample: int, name: str, problem: str) -> None:
        self._current().failures.append(Failure(index, sample, name, problem))

    def _current(self) -> Slot:
        if self._slot is None:
            start = time.perf_counter()
            self._slot = self._ring.take()
            self.seconds.waiting += time.perf_counter() - start
        return self._slot

    def _with_room(self, element_type: str, nbytes: int, needed: int | None = None) -> Slot:
        """A slot for one more row, which takes `needed` bytes on the device, as many as here unless that is said."""
        slot = self._current()
        needed = aligned(nbytes) if needed is None else needed
        if slot.rows and (slot.element_type != element_type or not slot.has_room(nbytes, needed)):
            self.flush()
            slot = self._current()
        slot.element_type = element_type
        return slot

    def _add(self, slot: Slot, row: Row, nbytes: int, needed: int | None = None) -> None:
        slot.rows.append(row)
        slot.used += nbytes
        slot.needed += aligned(nbytes) if needed is None else needed
        if self._ring.takes_pictures:
            slot.used = aligned(slot.used)
