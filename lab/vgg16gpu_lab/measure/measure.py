"""Times of a variant: checked first, then taken on the device, conversion and computation apart, caches warm and cold.

A sample is what lies between two events (wall clock on a CPU). Warm: back to back, short launches several in a sample.
Cold: one launch a sample, its start included, behind a copy that leaves other data in all caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from vgg16gpu.bench.measure.timing import Summary, sample_until, summarise
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.copy_kernel import transfer_step
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, Pointer
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Array
from vgg16gpu_lab.reference import Reference

DESCRIPTION: Final = (
    "every variant is checked against float64 (error: norm-wise) before it is timed; then samples until {seconds:g} s "
    "or {samples}, medians; warm: back to back, as many launches in a sample as fill {fill:g} us (at most {launches}); "
    "cold: {cold}; conversion (im2col, transformed weights) and computation are timed apart"
)
NOTES: Final = (
    "%: what the least time for the work (its arrays moved once, its FLOP) is of the time; above 100 caches serve it. "
    "~: not run but scaled up."
)

_FILL_SECONDS: Final = 2e-4  # of a warm sample: events and gaps between launches do not count then
_MOST_LAUNCHES: Final = {"cuda": 50, "cpu": 1}  # in a warm sample
_FLUSH_NBYTES: Final = {"cuda": 256 << 20, "cpu": 64 << 20}  # at least; of a GPU more than any L2
_MOST_FLUSH_NBYTES: Final = 1 << 30
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")

Scope: TypeAlias = Literal["compute", "total", "setup"]  # alone, with the conversion, with a library's set-up


class Status(StrEnum):
    """What became of a case."""

    RIGHT = "right"
    WRONG = "wrong"  # the answer; there is no time
    ESTIMATED = "estimated"  # would take too long: scaled up from a smaller problem
    INVALID = "invalid launch"  # CUDA would reject it
    REFUSED = "refused"  # by the variant itself
    FAILED = "failed"  # did not compile, or went wrong while it ran
    NO_ROOM = "no room"  # in the device's memory, or the host's
    MISSING = "missing"  # a library that is not installed, a variant that is not there, what was not measured

    @property
    def is_fault(self) -> bool:
        """Return whether somebody has to repair something."""
        return self in (Status.WRONG, Status.FAILED)


@dataclass(frozen=True)
class Effort:
    """How much is measured. A run that takes longer than `seconds` is not repeated, one beyond `limit` not made."""

    seconds: float = 0.5  # of samples, with warm and with cold caches each
    samples: int = 30  # at most
    limit: float = 45.0  # seconds that a run may be expected to take
    cold: bool = True
    products: int = 10**9  # most in the float64 check of a problem; above, some rows are checked

    def description(self, kind: str, cold: str) -> str:
        """Describe how times are taken, for readers of records."""
        return DESCRIPTION.format(
            seconds=self.seconds,
            samples=self.samples,
            fill=1e6 * _FILL_SECONDS,
            launches=_MOST_LAUNCHES[kind],
            cold=cold if self.cold else "not measured",
        )


def choose_effort(kind: str, *, quick: bool = False, full: bool = False) -> Effort:
    """Return the effort for a kind of device; quick: seconds for a seed's table; full: all samples, however long."""
    if quick:
        return Effort(seconds=0.05, samples=5, limit=1.0, cold=False, products=10**7)
    usual = Effort() if kind == "cuda" else Effort(limit=10.0)
    return replace(usual, seconds=math.inf, limit=math.inf) if full else usual


@dataclass(frozen=True)
class Times:
    """Of a launch, or of several that belong together. `cold` is None where it was not measured."""

    warm: Summary
    cold: Summary | None = None


@dataclass(frozen=True)
class Measurement:
    """What became of a variant, or a library, with a problem."""

    status: Status
    reason: str = ""  # for every status but RIGHT
    error: float | None = None  # norm-wise, against float64
    tolerance: float | None = None
    checked: str = ""  # what was compared
    compute: Times | None = None
    convert: Times | None = None  # None: there is nothing to convert
    estimate_s: float | None = None  # of ESTIMATED, the computation alone
    estimate_convert_s: float = 0.0  # of ESTIMATED, the conversion
    details: Mapping[str, Any] = field(default_factory=dict)  # what a library says of itself
    output: str = ""  # what a compiler wrote, where it refused the kernel

    def seconds(self, scope: Scope = "compute", *, cold: bool = False) -> float | None:
        """Return the median, of the computation alone or with more; None where there is none."""
        if self.estimate_s is not None:
            return None if cold else self.estimate_s + (self.estimate_convert_s if scope == "total" else 0.0)
        if scope == "setup":
            setup, run = self.details.get("setup_s"), self.seconds(cold=cold)
            return None if setup is None or run is None else setup + run
        parts = [self.compute, *([self.convert] if scope == "total" and self.convert else [])]
        found = [(part.cold if cold else part.warm) if part else None for part in parts]
        medians = [summary.median_s for summary in found if summary]
        return sum(medians) if len(medians) == len(found) else None


class Flush:
    """Leaves other data in the caches: a copy whose target is larger than the last level."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.nbytes = flush_nbytes(device.facts.kind)
        self._address = device.allocate(2 * self.nbytes)
        step = transfer_step(Pointer(Arena.ACTIVATIONS, self.nbytes), Pointer(Arena.ACTIVATIONS, 0), self.nbytes)
        device.build([step.kernel])
        self._copy = device.bind([step], {Arena.ACTIVATIONS: self._address})

    def __call__(self) -> None:
        """Enqueue the copy."""
        self._copy()

    @property
    def description(self) -> str:
        """For records."""
        return f"a launch a sample, {self.nbytes >> 20} MiB are written before each"

    def close(self) -> None:
        """Free the memory."""
        self._device.unbind(self._copy)
        self._device.free(self._address)


def flush_nbytes(kind: str, caches: Path = _CACHES) -> int:
    """Return the bytes to write so that nothing else is left in the caches."""
    sizes = [path.read_text(encoding="ascii").strip() for path in caches.glob("index*/size")] if kind == "cpu" else []
    largest = max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes), default=0)
    return min(_MOST_FLUSH_NBYTES, max(_FLUSH_NBYTES[kind], (largest + (largest >> 2)) // 4096 * 4096))


class TimedTrial(Trial):
    """A trial whose parts can be timed."""

    def timed_run(self) -> tuple[Array, float, float]:
        """Return a run's result, and the seconds of its conversion and of its computation."""
        whole = self.convert, self.compute
        taken: list[float] = []

        def timed(work: Callable[[], None]) -> Callable[[], None]:
            return lambda: taken.extend(self.device.measure(work, 1))

        self.convert, self.compute = timed(whole[0]), timed(whole[1])
        try:
            y = self.run()
        finally:
            self.convert, self.compute = whole
        convert, compute = taken
        return y, convert, compute

    def bound(self, steps: Sequence[KernelLaunch], times: int) -> Callable[[], None]:
        """Bind these launches, `times` times in a row."""
        return self._bind(tuple(steps) * times)


def measure(trial: TimedTrial, reference: Reference, effort: Effort, flush: Flush | None) -> Measurement:
    """Check a variant and, if it is right, time it. `flush` None: no cold caches."""
    y, convert, compute = trial.timed_run()
    checked = verdict(reference.error(y), reference.extent, trial.variant.allowed(trial.problem))
    if where := trial.trespass():
        return replace(checked, status=Status.WRONG, reason=f"writes {where}: no time")
    if checked.status is Status.WRONG:
        return checked
    steps = trial.launches
    return replace(
        checked,
        convert=_times(trial, steps.convert, convert, effort, flush) if steps.convert else None,
        compute=_times(trial, steps.compute, compute, effort, flush),
    )


def verdict(error: float, checked: str, tolerance: float, judge: str = "float64") -> Measurement:
    """Return right or wrong, without a time yet; NaN is wrong. `judge` is what `checked` was compared with."""
    if error <= tolerance:
        return Measurement(Status.RIGHT, "", error, tolerance, checked)
    hint = " (something was not written, or read beside its array)" if math.isnan(error) else ""
    reason = f"error {error:.3g} against {judge}{hint}, allowed is {tolerance:g}: no time"
    return Measurement(Status.WRONG, reason, error, tolerance, checked)


def _times(
    trial: TimedTrial, steps: Sequence[KernelLaunch], first: float, effort: Effort, flush: Flush | None
) -> Times:
    return take_times(trial.device, lambda times: trial.bound(steps, times), first, effort, flush)


def take_times(
    device: Device, bound: Callable[[int], Callable[[], None]], first: float, effort: Effort, flush: Flush | None
) -> Times:
    """Measure `bound(n)`, which enqueues work n times in a row, and whose first run took `first` seconds.

    `flush` None: no cold caches.
    """
    if first > effort.seconds:
        return Times(summarise([first]))
    single = bound(1)
    one = device.measure(single, 2)[-1]
    launches = max(1, min(_MOST_LAUNCHES[device.facts.kind], math.ceil(_FILL_SECONDS / max(one, 1e-9))))
    several = bound(launches)
    device.measure(several, 1)
    samples = sample_until(lambda: device.measure(several, 1)[0] / launches, effort.seconds, most=effort.samples)
    warm = summarise(samples, launches)
    if flush is None:
        return Times(warm)

    def cold() -> float:
        flush()
        return device.measure(single, 1)[0]

    return Times(warm, summarise(sample_until(cold, effort.seconds, most=effort.samples)))
