"""A card that is nearly full: what is promised to fit runs, what does not is refused and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.stress.bits import pictures
from vgg16gpu.devices import open_device
from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.runtime.engine import Engine

ENOUGH, TOO_LITTLE = 1_000_000_000, 300_000_000  # bytes that are left free
LARGEST_LOSS = 2 << 20  # the driver gives out memory in pieces of this size

COLUMNS = ("free MB", "precision", "batch", "expected", "outcome", "taken MB", "lost MB", "message")


@dataclass(frozen=True)
class Attempt:
    """Building and running an engine beside a full card; bytes as the driver counts them."""

    precision: str
    batch: int
    free_nbytes: int  # right before the engine was built
    taken_nbytes: int  # by the engine, after its first run
    lost_nbytes: int  # not free again once everything was closed, the second time
    expected: str  # "ran" or "refused"
    outcome: str  # one of these, or "failed"
    message: str  # of the exception

    @property
    def passed(self) -> bool:
        """As expected, and nothing is lost."""
        return self.outcome == self.expected and self.lost_nbytes <= LARGEST_LOSS

    def cells(self) -> tuple[object, ...]:
        """A row under COLUMNS."""
        free, taken, lost = (f"{n / 1e6:.0f}" for n in (self.free_nbytes, self.taken_nbytes, self.lost_nbytes))
        return free, self.precision, self.batch, self.expected, self.outcome, taken, lost, self.message


def measure(model: Path, device: str) -> Iterator[Attempt]:
    """Fill the card twice; on a GPU that nobody else uses."""
    with filled(device, ENOUGH):
        yield attempt(model, device, "fp32", 8, "ran")
        yield attempt(model, device, "fp16", 32, "ran")
    with filled(device, TOO_LITTLE):
        yield attempt(model, device, "fp32", 8, "refused")


@contextmanager
def filled(device: str, leave: int) -> Iterator[None]:
    """A card on which about `leave` bytes are free."""
    opened, _ = open_device(device)
    with closing(opened):
        opened.allocate(max(opened.facts.memory_free - leave, 0))
        yield


def attempt(model: Path, device: str, precision: str, batch: int, expected: str) -> Attempt:
    """Try it twice: what the driver keeps of the first time, for good, is not lost."""
    _try(model, device, precision, batch)
    free = free_nbytes(device)
    outcome, message, left = _try(model, device, precision, batch)
    lost = free - free_nbytes(device)
    return Attempt(precision, batch, free, free - left, lost, expected, outcome, message)


def free_nbytes(device: str) -> int:
    """Free memory of the card, from the driver."""
    opened, _ = open_device(device)
    with closing(opened):
        return opened.facts.memory_free


def _try(model: Path, device: str, precision: str, batch: int) -> tuple[str, str, int]:
    """Outcome, message, and how many bytes were free while the engine was there (else now)."""
    try:
        with Engine(model, device=device, precision=precision, batch=batch) as engine:
            scores = engine.run(pictures(engine, batch))
            left = free_nbytes(device)
    except DeviceError as error:
        return "refused", str(error), free_nbytes(device)
    except Error as error:
        return "failed", f"{type(error).__name__}: {error}", free_nbytes(device)
    finite = bool(np.isfinite(np.asarray(scores)).all())
    return ("ran", "", left) if finite else ("failed", "scores are not finite", left)
