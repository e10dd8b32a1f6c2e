"""Engines that share work: a thread for each takes the next batch when it is free; who fails is taken out."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from vgg16gpu.errors import Error, InputError
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.outputs import OutputRows, Outputs
from vgg16gpu.runtime.streaming import DEPTH

_log = logging.getLogger(__name__)

AHEAD: Final = DEPTH + 1  # batches for each engine: those under way, and one that waits


class BatchSession(Protocol):
    """A way for batches of one form to whatever computes them: see `double_buffer.Lane`."""

    @property
    def send(self) -> Callable[..., Any]:
        """The call that starts a batch."""

    @property
    def receive(self) -> Callable[[Any], OutputRows]:
        """The call that waits for a batch's results."""

    @property
    def joined(self) -> Callable[..., Outputs]:
        """The call that joins results to a caller's outputs."""


class BatchEngine(Protocol):
    """An engine of this process, or of another one."""

    @property
    def device_choice(self) -> str:
        """On which device, and why."""

    def lane(self, element_type: str, sample: tuple[int, ...], size: int) -> AbstractContextManager[BatchSession]:
        """See `Engine.lane`."""


E = TypeVar("E", bound=BatchEngine)


@dataclass
class DeviceShare:
    """What one device has done of a pool's work. `problem`: why it was taken out; "" while it works."""

    device: str
    images: int = 0
    batches: int = 0
    seconds: float = 0.0  # with a batch under way
    problem: str = ""


@dataclass(eq=False)
class DeviceState(Generic[E]):
    """An engine of a pool, and its share of the work."""

    engine: E
    share: DeviceShare

    @property
    def works(self) -> bool:
        """Return whether it has not been taken out."""
        return not self.share.problem


class DevicePool(Generic[E]):
    """Which engines of a pool work. From any thread."""

    def __init__(self, engines: Sequence[E]) -> None:
        self.members = [DeviceState(engine, DeviceShare(engine.device_choice)) for engine in engines]
        self._lock = threading.Lock()

    @property
    def working(self) -> list[DeviceState[E]]:
        """Devices that have not been taken out; never empty."""
        return [member for member in self.members if member.works]

    def take_out(self, member: DeviceState[E], error: BaseException) -> bool:
        """Mark a device as failed and log that; False for the last one, which stays: its errors are the caller's."""
        with self._lock:
            if not member.works:
                return True  # by another thread, which has said so
            if len(self.working) < 2:
                return False
            member.share.problem = str(error) or type(error).__name__
            left = len(self.working)
        _log.warning(
            "%s is taken out, and %d of %d devices go on with its work: %s",
            member.share.device,
            left,
            len(self.members),
            error,
        )
        return True


@dataclass(frozen=True)
class Form:
    """What batches have in common that go through one lane: element type, shape of an image, largest batch."""

    element_type: str
    sample: tuple[int, ...]
    size: int


@dataclass(eq=False)
class BatchTask:
    """A batch to be computed: at the built size `batch`, or the smallest that holds it."""

    form: Form
    rows: Sequence[Images]
    batch: int | None = None
    done: Future[BatchResultEvent] = field(default_factory=Future)

    @property
    def count(self) -> int:
        """Its images."""
        return sum(map(len, self.rows))


@dataclass(frozen=True, eq=False)
class BatchResultEvent:
    """What came of a batch. joined: makes what a caller gets of all the results of an input."""

    results: OutputRows
    joined: Callable[..., Outputs]


class WorkerPool(Closing):
    """A thread for each engine of a roll. Tasks begin in the order in which they come, each with who is free."""

    def __init__(self, roll: DevicePool[Any]) -> None:
        self._roll = roll
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tasks: deque[BatchTask] = deque()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(member,), name=f"vgg16gpu-pool-{number}", daemon=True)
            for number, member in enumerate(roll.members)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: BatchTask) -> BatchTask:
        """Append a task; its rows must stay as they are until it is done. Raises InputError once closed."""
        with self._lock:
            if self._is_closed:
                raise InputError("the pool is closed; build a new one")
            self._tasks.append(task)
            self._changed.notify()
        return task

    def close(self, patience: float | None = None, end: Callable[[], None] = lambda: None) -> None:
        """End the threads, once what is under way is done; what has not begun is cancelled. Safe to call twice.

        patience: seconds that it may take; after them `end` has whatever computes fail. None: no bound.
        """
        with self._lock:
            self._is_closed = True
            for task in self._tasks:
                task.done.cancel()
            self._tasks.clear()
            self._changed.notify_all()
        over = None if patience is None else time.monotonic() + patience
        for thread in self._threads:
            thread.join(over and max(0.0, over - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            end()
        for thread in self._threads:
            thread.join()
        for task in self._tasks:  # whose engine has failed meanwhile
            task.done.set_exception(InputError("the pool is closed; build a new one"))
        self._tasks.clear()

    def _work(self, member: DeviceState[Any]) -> None:
        while member.works:
            worker = _Worker(member)
            try:
                while (task := self._take(worker)) is not None or worker.under_way:
                    worker.advance(task)
                return
            except Exception as error:
                self._fail(member, worker, error)
            finally:
                worker.close()

    def _take(self, worker: _Worker) -> BatchTask | None:
        """Return the next task; None where there is none and something is under way, or at the end."""
        with self._lock:
            while True:
                while self._tasks:
                    task = self._tasks.popleft()
                    if task.done.running() or task.done.set_running_or_notify_cancel():  # else nobody wants it
                        return task
                if worker.under_way or self._is_closed:
                    return None
                self._changed.wait()

    def _fail(self, member: DeviceState[Any], worker: _Worker, error: Exception) -> None:
        """Give a failed worker's tasks to others; without others, or for a bad input, raise in the callers."""
        tasks = worker.in_hand()
        is_to_blame = isinstance(error, InputError)
        if is_to_blame or not self._roll.take_out(member, error):
            for task in tasks[-1:] if is_to_blame else tasks:
                task.done.set_exception(error)
            tasks = tasks[:-1] if is_to_blame else []
        with self._lock:
            self._tasks.extendleft(reversed(tasks))
            self._changed.notify_all()


class _Worker:
    """What one engine has in hand, in its thread."""

    def __init__(self, member: DeviceState[Any]) -> None:
        self.under_way: deque[tuple[BatchTask, Any]] = deque()
        self._member = member
        self._beginning: BatchTask | None = None
        self._form: Form | None = None
        self._lane: BatchSession | None = None
        self._stack = ExitStack()
        self._since = 0.0

    def in_hand(self) -> list[BatchTask]:
        """Return all tasks that are not done, the oldest first; the one that was being begun comes last."""
        return [task for task, _ in self.under_way] + ([self._beginning] if self._beginning else [])

    def advance(self, task: BatchTask | None) -> None:
        """Begin a task, and end the oldest where there is no room for more, or nothing else to do."""
        if task is None:
            self._receive()
            return
        self._beginning = task
        if self._form != task.form:
            while self.under_way:
                self._receive()
            self.close()
            form = task.form
            engine = self._member.engine
            self._lane = self._stack.enter_context(engine.lane(form.element_type, form.sample, form.size))
            self._form = form
        assert self._lane is not None
        if not self.under_way:
            self._since = time.perf_counter()
        self.under_way.append((task, self._lane.send(task.rows, task.batch)))
        self._beginning = None
        if len(self.under_way) == DEPTH:
            self._receive()

    def close(self) -> None:
        """Close the lane."""
        self._form = None
        try:
            self._stack.close()
        except Error as error:  # of a device that has been taken out already
            _log.debug("%s", error)

    def _receive(self) -> None:
        assert self._lane is not None
        task, sent = self.under_way[0]
        results = self._lane.receive(sent)
        self.under_way.popleft()
        now, share = time.perf_counter(), self._member.share
        share.images, share.batches, share.seconds = (
            share.images + task.count,
            share.batches + 1,
            share.seconds + now - self._since,
        )
        self._since = now
        task.done.set_result(BatchResultEvent(results, self._lane.joined))
