"""What one thread does that loads files: each into a slot of its own, until that is full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.inputs import InputSpec, Sample, check_finite, each_sample
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.pace import Seconds
from vgg16gpu.pictures.slots import BufferPool, Failure, SampleRow, Slot, aligned


class Loading(Protocol):
    """Whose threads these are. first: the (file, sample) to begin with."""

    @property
    def listing(self) -> Listing:
        """The files."""

    @property
    def files(self) -> Sequence[str]:
        """Their names."""

    @property
    def spec(self) -> InputSpec:
        """The form of a sample."""

    @property
    def ring(self) -> BufferPool:
        """The pool of slots."""

    @property
    def first(self) -> tuple[int, int]:
        """The (file, sample) to begin with."""

    def submit(self, slot: Slot) -> None:
        """Queue a full slot."""

    def has_loaded(self, wall: float) -> None:
        """Note that a thread loaded a picture in `wall` seconds."""

    def wait_for_turn(self, worker: DecodeThread, index: int) -> None:
        """Wait until every file before this one has its answers."""


class _Reservation(NamedTuple):
    """Where bytes lie that no row tells of yet."""

    slot: Slot
    offset: int


class DecodeThread:
    """What one thread has in hand."""

    def __init__(self, loading: Loading) -> None:
        self.seconds = Seconds()
        self.decoded = 0
        self._loader, self._ring = loading, loading.ring
        self._decoder = Decoder(loading.spec)
        self._slot: Slot | None = None

    def load(self, index: int) -> None:
        """Load all samples of one file into slots."""
        file = self._loader.files[index]
        if problem := self._loader.listing.problems.get(index):
            self._fail(index, 0, file, problem)
            self._current().ends.append((index, 1))
        elif file in self._loader.listing.numbers:
            self._load_numbers(index, file)
        else:
            self._load_picture(index, file)
        if index == self._loader.first[0]:
            self.flush()  # somebody waits to see whether the inputs are any good at all

    def load_again(self, index: int, wanted: frozenset[int]) -> None:
        """Load some samples of a file into slots once more; its end has been told."""
        file = self._loader.files[index]
        if file not in self._loader.listing.numbers:
            self._load_picture(index, file)
            return
        left = set(wanted)
        for count, (name, sample) in enumerate(each_sample(file, self._loader.spec)):
            if count in left:
                self._place_checked(index, count, name, sample)
                left.remove(count)
            if not left:
                return
        for count in sorted(left):
            self._fail(index, count, file, f"'{file}' has fewer samples than before; leave it alone while it is read")

    @property
    def has_rows(self) -> bool:
        """Return whether there is something to compute in the slot."""
        return self._slot is not None and bool(self._slot.rows)

    def flush(self) -> None:
        """Submit the slot, if there is anything in it."""
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

    def _read(self, index: int, file: str) -> tuple[bytes, _Reservation | None]:
        """Return a file's bytes, and where they lie in a slot already, if the device may decode it."""
        contents, slot = self._loader.listing.contents, self._slot
        if contents is not None:
            return contents[index], None
        if self._ring.room_nbytes and slot:
            rest = slot.buffer[slot.used :]
            if (nbytes := self._decoder.read_into(file, rest)) is not None:
                return rest[:nbytes].tobytes(), _Reservation(slot, slot.used)
        return self._decoder.read(file), None

    def _place_picture(self, index: int, file: str, data: bytes, place: _Reservation | None) -> None:
        decoder, ring = self._decoder, self._ring
        if ring.room_nbytes and self._place_file(index, file, data, place):
            return
        if ring.takes_pictures and (shape := decoder.shape(data)):
            height, width = shape
            nbytes = height * width * decoder.channels
            if nbytes <= ring.nbytes:
                slot = self._with_room("uint8", nbytes)
                if decoder.decode_into(data, slot.rest(nbytes)):
                    self._add(slot, SampleRow(index, 0, file, slot.used, height, width), nbytes)
                    return
        self._place(index, 0, file, decoder.fitted(data, file))

    def _place_file(self, index: int, file: str, data: bytes, place: _Reservation | None) -> bool:
        """Copy a file that the device may decode into a slot; False for another. place: as of `_read`."""
        decoder, ring = self._decoder, self._ring
        if (shape := decoder.file_shape(data)) is None:
            return False
        needed = decoder.room_nbytes(*shape)
        if len(data) > ring.nbytes or needed > ring.room_nbytes:
            return False
        slot = self._with_room("uint8", len(data), needed)
        if place != (slot, slot.used):  # a full slot has gone, and may be back, empty
            slot.rest(len(data))[:] = np.frombuffer(data, np.uint8)
        self._add(slot, SampleRow(index, 0, file, slot.used, *shape[:2], len(data), shape[2]), len(data), needed)
        return True

    def _load_numbers(self, index: int, file: str) -> None:
        self._loader.wait_for_turn(self, index)
        skipped = self._loader.first[1] if index == self._loader.first[0] else 0
        count, start = 0, time.perf_counter()
        waited = self.seconds.waiting
        for name, sample in each_sample(file, self._loader.spec):
            if count >= skipped:
                self._place_checked(index, count, name, sample)
            count += 1
        if count < skipped:
            self._fail(index, skipped, file, f"'{file}' has fewer samples than there are rows of it")
            count = skipped + 1
        self.seconds.reading += time.perf_counter() - start - (self.seconds.waiting - waited)
        self._current().ends.append((index, count))

    def _place_checked(self, index: int, sample: int, name: str, array: Sample | InputError) -> None:
        spec = self._loader.spec
        if not isinstance(array, InputError) and not spec.allow_nonfinite:
            try:
                check_finite(array, name, spec.nonfinite_advice)
            except InputError as error:  # a sample is refused, not its file
                array = error
        if isinstance(array, InputError):
            self._fail(index, sample, name, str(array))
        else:
            self._place(index, sample, name, array)

    def _place(self, index: int, sample: int, name: str, array: Sample) -> None:
        if self._loader.spec.turns(array.dtype.name):
            array = np.moveaxis(array, -1, 0)
        slot = self._with_room(array.dtype.name, array.nbytes)
        slot.rest(array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._add(slot, SampleRow(index, sample, name, slot.used), array.nbytes)

    def _fail(self, index: int, sample: int, name: str, problem: str) -> None:
        self._current().failures.append(Failure(index, sample, name, problem))

    def _current(self) -> Slot:
        if self._slot is None:
            start = time.perf_counter()
            self._slot = self._ring.take()
            self.seconds.waiting += time.perf_counter() - start
        return self._slot

    def _with_room(self, element_type: str, nbytes: int, needed: int | None = None) -> Slot:
        """Return a slot for one more row of `needed` bytes on the device (default: `nbytes`, aligned)."""
        slot = self._current()
        needed = aligned(nbytes) if needed is None else needed
        if slot.rows and (slot.element_type != element_type or not slot.has_room(nbytes, needed)):
            self.flush()
            slot = self._current()
        slot.element_type = element_type
        return slot

    def _add(self, slot: Slot, row: SampleRow, nbytes: int, needed: int | None = None) -> None:
        slot.rows.append(row)
        slot.used += nbytes
        slot.needed += aligned(nbytes) if needed is None else needed
        if self._ring.takes_pictures:
            slot.used = aligned(slot.used)
