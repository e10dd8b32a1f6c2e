"""A loader's slots among several engines: each slot goes to who asks first, and is remembered until it is computed.

loader ── dealer ─┬─ hand ── engine 0
                  ├─ hand ── engine 1
                  └─ ...
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.slots import BufferPool, Closed, SampleRow, Slot
from vgg16gpu.runtime.answers.rows import FileEvents
from vgg16gpu.runtime.closing import Closing


class WorkQueue(Closing):
    """Deals the slots of a loader that `takes_back`. Close it once the loader is closed."""

    def __init__(self, loader: Loader, count: int) -> None:
        self.loader = loader
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._slots: deque[Slot] = deque()
        self._error: BaseException | None = None
        self._has_ended = False
        self.hands = [Consumer(self) for _ in range(count)]
        self._thread = threading.Thread(target=self._deal, name="vgg16gpu-deal")
        self._thread.start()

    def take(self, hand: Consumer) -> Slot | None:
        """The next slot; None where a hand is to compute what it has (see Loader). Raises Closed at the end."""
        with self._lock:
            while True:
                if hand.is_closed:
                    raise Closed
                if self._slots:
                    slot = self._slots.popleft()
                    hand.note(slot)
                    return slot
                if hand.is_asked:
                    hand.is_asked = False
                    return None
                if self._error:
                    error, self._error = self._error, None
                    raise error
                if self._has_ended:
                    raise Closed
                self._changed.wait()

    def wake(self) -> None:
        """A hand has been closed."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for the thread. Safe to call twice."""
        self._thread.join()

    def _deal(self) -> None:
        try:
            for slot in self.loader:
                with self._lock:
                    if slot is None:
                        for hand in self.hands:
                            hand.is_asked = True
                    else:
                        self._slots.append(slot)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._has_ended = True
            self._changed.notify_all()


class Consumer:
    """The slots of one engine, as a loader gives them; iterate over it once.

    Two threads may use it: who takes slots and who computes them.
    is_asked: whether all that it has is to be computed, as nothing comes before that is answered.
    """

    def __init__(self, dealer: WorkQueue) -> None:
        self._dealer = dealer
        self.is_asked = self.is_closed = False
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, int], SampleRow] = {}  # that are not computed
        self._slots: dict[int, Slot] = {}  # all that were ever here, by identity
        self._unheard: dict[int, Slot] = {}  # of these, what they say beside their rows is still to be told

    @property
    def spec(self) -> InputSpec:
        """What a sample is."""
        return self._dealer.loader.spec

    @property
    def ring(self) -> BufferPool:
        """Where slots go back to."""
        return self._dealer.loader.ring

    def __iter__(self) -> Iterator[Slot | None]:
        while True:
            try:
                slot = self._dealer.take(self)
            except Closed:
                return
            yield slot

    def note(self, slot: Slot) -> None:
        """A slot is here now."""
        slot.holder = self
        with self._lock:
            self._slots[id(slot)] = self._unheard[id(slot)] = slot
            self._rows.update({(row.file, row.sample): row for row in slot.rows})

    def heard(self, slot: Slot) -> FileEvents:
        """What a slot says beside its rows, which the caller tells now."""
        heard = FileEvents(slot.failures, slot.ends)
        with self._lock:
            del self._unheard[id(slot)]
        self.done((failure.file, failure.sample) for failure in heard.failures)
        return heard

    def done(self, rows: Iterable[tuple[int, int]]) -> None:
        """These, by (file, sample), have their answers."""
        with self._lock:
            for key in rows:
                self._rows.pop(key, None)

    def close(self) -> None:
        """Give nothing out any more."""
        self.is_closed = True
        self._dealer.wake()

    def hand_back(self) -> list[FileEvents]:
        """Let others do what is not computed: once closed, and when nobody reads a slot of it.

        What its slots say beside their rows, and nobody has told.
        """
        heard = [self.heard(slot) for slot in list(self._unheard.values())]
        for slot in self._slots.values():
            if slot.holder is self:
                self.ring.give_back(slot)
        self._dealer.loader.again(self._rows.values())
        self._rows.clear()
        return heard
