"""CuDNN's own best: every plan that it has for a problem, checked against float64 and timed as the variants are.

It is reached through NVIDIA's Python front end, else through torch. A plan with a larger workspace than S2 allows, one
that is not exact enough (TF32, unless that is asked for) or that fails gets no time, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from vgg16gpu.devices.base import ArrayInterop, Device
from vgg16gpu.errors import Error
from vgg16gpu_lab.measure.cudnn.base import ORDERS, Candidate, MissingLibraryError, Order, Request, Session, Way, told
from vgg16gpu_lab.measure.cudnn.frontend import Frontend
from vgg16gpu_lab.measure.cudnn.torch import Torch
from vgg16gpu_lab.measure.measure import Effort, Flush, Times, take_times, verdict
from vgg16gpu_lab.reference import Reference

WORKSPACE_NBYTES: Final = 500_000_000  # as in S2
TOLERANCE: Final = 1e-5  # norm-wise, as of the variants
TF32_TOLERANCE: Final = 2e-3

_WAYS: Final[tuple[Callable[[Device, ArrayInterop], Way], ...]] = (Frontend, Torch)
_TRY_SECONDS, _TRY_SAMPLES = 0.05, 5  # of a plan; the best of an order is measured in full


@dataclass(frozen=True)
class Plan:
    """What became of one of the library's ways to compute a problem."""

    name: str  # of the front end: the engine and its knobs
    order: Order
    times: Times | None = None
    error: float | None = None  # norm-wise, against float64
    workspace_nbytes: int | None = None
    setup_s: float | None = None  # from nothing to the first run: handle, descriptors, heuristics and this plan alone
    captured: bool = False  # timed as a CUDA graph, as our own launches are; else the host's calls are in the time
    reason: str = ""  # why it has no time

    @property
    def median_s(self) -> float | None:
        """Seconds of a run, caches warm."""
        return self.times.warm.median_s if self.times else None

    @property
    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "order": self.order,
            "median_s": self.median_s,
            "samples": self.times.warm.samples if self.times else 0,
            "error": self.error,
            "workspace_nbytes": self.workspace_nbytes,
            "setup_s": self.setup_s,
            "captured": self.captured,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LibraryResult:
    """What cuDNN does with a problem."""

    version: str
    through: str  # package and version
    plans: tuple[Plan, ...]
    tolerance: float
    notes: tuple[str, ...] = ()  # why it was not reached in a better way
    heuristics: tuple[str, ...] = ()  # that were asked for plans
    calls: int = 1  # that a time covers

    @property
    def best(self) -> Plan | None:
        """The fastest of those that are right; None if none is."""
        timed = [(plan.median_s, index) for index, plan in enumerate(self.plans) if plan.median_s is not None]
        return self.plans[min(timed)[1]] if timed else None

    @property
    def reason(self) -> str:
        """Why there is no best one."""
        reasons = dict.fromkeys(plan.reason for plan in self.plans)
        return f"no plan of cuDNN {self.version} does it: {'; '.join(reasons)}" if self.best is None else ""

    @property
    def details(self) -> Mapping[str, Any]:
        """For records: `setup_s`, the best plan's name, and every plan."""
        best = self.best
        return {
            "library": f"cuDNN {self.version}",
            "through": self.through,
            "plan": best.name if best else None,
            "order": best.order if best else None,
            "setup_s": best.setup_s if best else None,
            "captured": best.captured if best else None,
            "most_workspace_nbytes": WORKSPACE_NBYTES,
            "plans": [plan.record for plan in self.plans],
            "notes": list(self.notes),
            "heuristics": list(self.heuristics),
            "calls": self.calls,
        }


def measure_cudnn(
    device: Device, reference: Reference, effort: Effort, flush: Flush | None, *, tf32: bool = False
) -> LibraryResult:
    """Measure every plan in both orders. `flush` None: no cold caches.

    Raises MissingLibraryError, naming what is missing; DeviceError without memory; KernelError if a plan has left the
    device beyond use.
    """
    way, notes = open_way(device)
    tolerance = TF32_TOLERANCE if tf32 else TOLERANCE
    request = Request(WORKSPACE_NBYTES, tf32)
    trier = Trier(device, reference, effort, flush, tolerance)
    plans: list[Plan] = []
    for order in ORDERS:
        with way.session(reference.problem, reference.inputs, order, request) as session:
            plans += trier.plans(session, order)
    return LibraryResult(way.version, way.through, tuple(plans), tolerance, notes, way.heuristics)


def open_way(device: Device) -> tuple[Way, tuple[str, ...]]:
    """Return the first available way, and why those before it are missing. Raises MissingLibraryError without any."""
    if device.foreign is None:
        raise MissingLibraryError("cuDNN needs an NVIDIA GPU")
    reasons: list[str] = []
    for way in _WAYS:
        try:
            return way(device, device.foreign), tuple(reasons)
        except MissingLibraryError as error:
            reasons.append(str(error))
    raise MissingLibraryError(f"no cuDNN: {'; '.join(reasons)}")


@dataclass(frozen=True)
class Trier:
    """Checks and times the plans of sessions."""

    device: Device
    reference: Reference
    effort: Effort
    flush: Flush | None
    tolerance: float

    def plans(self, session: Session, order: Order) -> list[Plan]:
        """Return all plans of a session: the fastest measured in full."""
        found = list(self._tried(session, order))
        timed = [(plan.median_s, index) for index, (plan, _) in enumerate(found) if plan.median_s is not None]
        plans = [plan for plan, _ in found]
        if timed:
            seconds, index = min(timed)
            bound = self._bound(session, found[index][1])
            plans[index] = replace(plans[index], times=take_times(self.device, bound, seconds, self.effort, self.flush))
        return plans

    def _tried(self, session: Session, order: Order) -> Iterator[tuple[Plan, Candidate]]:
        for candidate in session.candidates:
            plan = Plan(
                candidate.name,
                order,
                workspace_nbytes=candidate.workspace_nbytes,
                setup_s=candidate.setup_s,
                reason=candidate.reason,
            )
            if candidate.run:
                try:
                    plan = self._try(session, candidate, plan)
                except Error:  # the device's own: nothing can be measured after it
                    raise
                except Exception as error:  # whatever a library raises
                    plan = replace(plan, reason=told(error))
            yield plan, candidate

    def _try(self, session: Session, candidate: Candidate, plan: Plan) -> Plan:
        """Run once for what is loaded late, then check what is timed, then time it shortly."""
        device, effort = self.device, self.effort
        assert candidate.run is not None
        device.measure(candidate.run, 1)
        single, captured = session.bound(candidate, 1)
        session.clear()
        (first,) = device.measure(single, 1)
        judged = verdict(self.reference.error(session.y()), self.reference.extent, self.tolerance)
        plan = replace(plan, error=judged.error, captured=captured, reason=judged.reason)
        if judged.reason:
            return plan
        shortly = replace(effort, seconds=min(effort.seconds, _TRY_SECONDS), samples=min(effort.samples, _TRY_SAMPLES))
        return replace(plan, times=take_times(device, self._bound(session, candidate), first, shortly, None))

    def _bound(self, session: Session, candidate: Candidate) -> Callable[[int], Callable[[], None]]:
        return lambda times: session.bound(candidate, times)[0]
