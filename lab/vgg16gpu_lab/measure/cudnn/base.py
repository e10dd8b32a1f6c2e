"""What a way to reach a library of convolutions looks like: it opens sessions, and a session has plans to be tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol, Self, TypeAlias

from vgg16gpu.errors import Error
from vgg16gpu_lab.problem import Array, Problem
from vgg16gpu_lab.variant import Layout

Order: TypeAlias = Literal["NCHW", "NHWC"]  # of x, the weights and y in memory
Inputs: TypeAlias = tuple[Array, Array]  # x and the weights, as the problem has them

LAYOUTS: Final[Mapping[Order, Layout]] = MappingProxyType({"NCHW": "CHW", "NHWC": "HWC"})  # as variants call them
ORDERS: Final[tuple[Order, ...]] = tuple(LAYOUTS)
_MOST_TEXT: Final = 240  # characters of a library's error


class MissingLibraryError(Error):
    """The library, or the package that it is reached through, is not here."""


@dataclass(frozen=True)
class Request:
    """What sessions are opened with."""

    workspace_nbytes: int  # most that a plan may have
    tf32: bool  # whether products may be rounded to TF32


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way of the library to compute a problem: `run` enqueues it once on the device's compute stream."""

    name: str  # as the library calls it
    run: Callable[[], None] | None  # None: it cannot be run
    reason: str = ""  # why
    workspace_nbytes: int | None = None
    setup_s: float | None = None  # from nothing to the first run: handle, descriptors, heuristics and this plan alone

    def repeated(self, times: int) -> Callable[[], None]:
        """Return a function that enqueues it `times` times in a row."""
        run = self.run
        assert run is not None

        def work() -> None:
            for _ in range(times):
                run()

        return work


class Session(Protocol):
    """One problem in one order, its arrays on the device."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All candidates that the library offers."""

    def bound(self, candidate: Candidate, times: int) -> tuple[Callable[[], None], bool]:
        """Return what enqueues the candidate `times` times, and whether it is a CUDA graph; valid as the session is."""

    def again(self, name: str) -> Session:
        """Return a session with its own handle, weights and y for the same problem and x: the plan `name` alone.

        Close it before this one. Raises DeviceError without memory.
        """

    def clear(self) -> None:
        """Enqueue that y becomes zero."""

    def y(self) -> Array:
        """Return the result, (N, outputs, rows, columns), on the host."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Way(Protocol):
    """How cuDNN is reached."""

    version: str  # of cuDNN
    through: str  # package and version
    heuristics: tuple[str, ...]  # that are asked for plans

    def session(self, problem: Problem, inputs: Inputs, order: Order, request: Request) -> Session:
        """Set it up. Raises DeviceError without memory."""


def told(error: BaseException) -> str:
    """Return a library's error message, on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."


def too_large(nbytes: int, most: int) -> str:
    """Return why a plan is not run, or "": its workspace."""
    return f"workspace of {nbytes / 1e6:.0f} MB, at most {most / 1e6:.0f} MB" if nbytes > most else ""
