"""CuDNN as S1 calls it: three calls in a row of one x, each with handle, descriptors, weights and result of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.cudnn.base import Candidate, Order, Request, Session
from vgg16gpu_lab.measure.cudnn.library import TOLERANCE, WORKSPACE_NBYTES, LibraryResult, Trier, open_way
from vgg16gpu_lab.measure.measure import Effort, Flush
from vgg16gpu_lab.problem import Array
from vgg16gpu_lab.reference import Reference

CALLS: Final = 3
_ORDER: Final[Order] = "NCHW"  # as theirs


def measure_three(device: Device, reference: Reference, effort: Effort, flush: Flush | None) -> LibraryResult:
    """Measure the best plan of one call, called by three sessions one after the other: one time, of all of them.

    Raises as `measure_cudnn` does.
    """
    way, notes = open_way(device)
    trier = Trier(device, reference, effort, flush, TOLERANCE)
    request = Request(WORKSPACE_NBYTES, tf32=False)
    with ExitStack() as opened:
        first = opened.enter_context(way.session(reference.problem, reference.inputs, _ORDER, request))
        tried = replace(trier, effort=replace(effort, cold=False), flush=None).plans(first, _ORDER)
        found = LibraryResult(way.version, way.through, tuple(tried), TOLERANCE, notes, way.heuristics, CALLS)
        if found.best is None:
            return found
        sessions = [opened.enter_context(first.again(found.best.name)) for _ in range(CALLS)]
        together = Together(sessions, reference)
        return replace(found, plans=tuple(trier.plans(together, _ORDER)))


class Together:
    """`base.Session`: the only candidates of several sessions as one. Whoever opened those closes them."""

    def __init__(self, sessions: Sequence[Session], reference: Reference) -> None:
        self._sessions, self._reference = sessions, reference
        self.candidates = [_one_after_the_other([each for one in sessions for each in one.candidates])]

    def bound(self, candidate: Candidate, times: int) -> tuple[Callable[[], None], bool]:
        """Return the first session's function that enqueues the candidate, and whether it is one CUDA graph."""
        return self._sessions[0].bound(candidate, times)

    def again(self, name: str) -> Session:
        """Return `again` of the first session."""
        return self._sessions[0].again(name)

    def clear(self) -> None:
        """Enqueue that every y becomes zero."""
        for session in self._sessions:
            session.clear()

    def y(self) -> Array:
        """Return the worst of the results."""
        return max((session.y() for session in self._sessions), key=self._badness)

    def close(self) -> None:
        """Do nothing: the sessions are closed by their owner."""

    def _badness(self, y: Array) -> float:
        error = self._reference.error(y)
        return math.inf if math.isnan(error) else error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _one_after_the_other(candidates: Sequence[Candidate]) -> Candidate:
    """Return a candidate that enqueues all of them; why not, where one of them cannot be run."""
    runs = [each.run for each in candidates if each.run is not None]
    reason = next((each.reason for each in candidates if each.run is None), "")

    def run() -> None:
        for each in runs:
            each()

    return Candidate(
        candidates[0].name,
        None if reason else run,
        reason,
        sum(each.workspace_nbytes or 0 for each in candidates),
        sum(each.setup_s or 0.0 for each in candidates),
    )
