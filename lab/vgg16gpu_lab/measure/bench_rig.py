"""Where cases are measured: a device with its roofline, the variants, and what has been measured already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final, TypeAlias

from vgg16gpu.bench.measure.ceilings import Ceilings, measure_ceilings
from vgg16gpu.bench.measure.timing import Summary
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error, KernelError
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu_lab.measure.baseline import measure_baseline
from vgg16gpu_lab.measure.measure import Effort, Flush, Measurement, Status, TimedTrial, measure, take_times
from vgg16gpu_lab.measure.outcome import outcome
from vgg16gpu_lab.measure.trial import guarded
from vgg16gpu_lab.problem import Network, Problem
from vgg16gpu_lab.reference import Reference
from vgg16gpu_lab.variant import Parameters, Variant

Work: TypeAlias = tuple[str, tuple[tuple[str, int], ...], Problem]  # variant, parameters, problem

Case: TypeAlias = tuple[Problem, Parameters]
Setting: TypeAlias = Work  # with the smallest image, as its size does not matter
# What is wrong in each case, found before the variant is run in this process.
DryRun: TypeAlias = Callable[[Variant, Sequence[Case]], Sequence[Measurement | None]]
NONE: Final[Mapping[str, DryRun]] = MappingProxyType({})

_TRUSTED_SECONDS: Final = 1e-3  # from which on a run tells what a larger one takes: the launch does not count


class BrokenDeviceError(KernelError):
    """A variant has left the device beyond use: nothing more can be measured in this process."""


class BenchRig:
    """Measures variants and baselines, each problem's answer computed once, each case measured once.

    `dry_runs`: what is to be asked before a variant is run in this process, once for each setting: parameters and all
    of a problem but the size of its image. What it says holds for every size.
    """

    def __init__(
        self, device: Device, variants: Iterable[Variant], effort: Effort, dry_runs: Mapping[str, DryRun] = NONE
    ) -> None:
        self.device, self.effort = device, effort
        self._dry_runs = dry_runs  # by name of the variant
        self._tried: dict[Setting, Measurement | None] = {}  # what is wrong, None: nothing
        self.variants = {variant.name: variant for variant in variants}
        self.broken = ""  # by whom, if the device is beyond use
        self._done: dict[tuple[Work, Effort], Measurement] = {}
        self._largest: dict[object, tuple[Problem, Measurement]] = {}  # timed, to tell what a larger one takes
        self._reference: Reference | None = None
        self._flush: Flush | None = None

    @cached_property
    def ceilings(self) -> Ceilings:
        """The device's roofline, measured."""
        return measure_ceilings(self.device)

    @cached_property
    def empty_launch(self) -> Summary:
        """The time of a kernel that does nothing, taken as every time is: less than that nobody measures."""
        step = KernelLaunch(Kernel("lab/empty.cu", "empty"), Dim3(1), Dim3(1), ())
        self.device.build([step.kernel])
        with contextlib.ExitStack() as bound:

            def several(times: int) -> Callable[[], None]:
                launch = self.device.bind([step] * times, {})
                bound.callback(self.device.unbind, launch)
                return launch

            first = self.device.measure(several(1), 1)[0]
            return take_times(self.device, several, first, self.effort, None).warm

    def percent(self, problem: Problem | Network, seconds: float) -> float:
        """Return the least time on FFMA, arrays moved once, in percent of `seconds`; caches can make it exceed 100."""
        ceilings = self.ceilings
        least = max(problem.flop / ceilings.flop_per_s, problem.nbytes / ceilings.bytes_per_s)
        return 100 * least / seconds

    @property
    def method(self) -> str:
        """Description of how times are taken, for records."""
        cold = self._flush.description if self._flush else "not measured"
        return self.effort.description(self.device.facts.kind, cold)

    def build(self, work: Iterable[tuple[str, Parameters, Problem]]) -> None:
        """Try in a dry run what is to be tried so, and compile the kernels of the rest at once.

        What does not compile, or must not be run, is told when it is measured.
        """
        work = tuple(work)
        self._try_dry(work)
        kernels: dict[Kernel, None] = {}
        for name, parameters, problem in work:
            if self._tried.get(_setting(name, parameters, problem)):
                continue
            with contextlib.suppress(Exception):  # `measure` meets it again and says so
                kernels.update(dict.fromkeys(self._kernels(self.variants[name], parameters, problem)))
        with contextlib.suppress(KernelError):
            self.device.build(kernels)

    def measure(self, name: str, parameters: Parameters, problem: Problem, effort: Effort | None = None) -> Measurement:
        """Measure a variant with a problem. Raises BrokenDeviceError, naming it, if it broke the device."""
        if self.broken:
            raise BrokenDeviceError(self.broken)
        effort = effort or self.effort
        key = (name, tuple(sorted(parameters.items())), problem), effort
        if key not in self._done:
            self._done[key] = self._measure(name, parameters, problem, effort)
        return self._done[key]

    def baseline(self, name: str, problem: Problem, effort: Effort | None = None) -> Measurement:
        """Measure a library, or the host, with a problem. Raises BrokenDeviceError once there is one."""
        if self.broken:
            raise BrokenDeviceError(self.broken)
        effort = effort or self.effort
        key = (name, (), problem), effort
        if key not in self._done:
            self._done[key] = self._outcome(name, partial(self._baseline, name, problem, effort))
        return self._done[key]

    def close(self) -> None:
        """Give back what is the rig's own; the device is not."""
        if self._flush:
            with contextlib.suppress(Error):  # of a device beyond use
                self._flush.close()
            self._flush = None

    def _kernels(self, variant: Variant, parameters: Parameters, problem: Problem) -> list[Kernel]:
        launches, _, _ = guarded(variant, problem, variant.with_defaults(parameters), self.device.facts)
        return [step.kernel for step in (*launches.convert, *launches.compute)]

    def _measure(self, name: str, parameters: Parameters, problem: Problem, effort: Effort) -> Measurement:
        variant = self.variants.get(name)
        if variant is None:
            return Measurement(Status.MISSING, f"there is no variant '{name}'")
        kin = _setting(name, parameters, problem)
        self._try_dry([(name, parameters, problem)])
        if objection := self._tried.get(kin):
            return objection
        if estimate := self._estimate(kin, problem, effort):
            return estimate
        found = self._outcome(name, partial(self._try, variant, parameters, problem, effort))
        if found.compute and (kin not in self._largest or problem.flop >= self._largest[kin][0].flop):
            self._largest[kin] = problem, found
        return found

    def _try_dry(self, work: Iterable[tuple[str, Parameters, Problem]]) -> None:
        """Ask of all settings that nobody has asked of yet, those of a variant at once."""
        asked: dict[str, dict[Setting, Case]] = {}
        for name, parameters, problem in work:
            setting = _setting(name, parameters, problem)
            if name in self._dry_runs and setting not in self._tried:
                asked.setdefault(name, {}).setdefault(setting, (problem, parameters))
        for name, cases in asked.items():
            found = self._dry_runs[name](self.variants[name], tuple(cases.values()))
            self._tried.update(zip(cases, found, strict=True))

    def _outcome(self, name: str, work: Callable[[], Measurement]) -> Measurement:
        """Return the result of `work`, or the outcome of its error. Raises BrokenDeviceError."""
        try:
            return work()
        except Exception as error:
            self._require_device(name)
            return outcome(error)

    def _try(self, variant: Variant, parameters: Parameters, problem: Problem, effort: Effort) -> Measurement:
        reference = self._answer(problem, effort)
        with TimedTrial(self.device, variant, problem, parameters, reference.inputs) as trial:
            return measure(trial, reference, effort, self._cold(effort))

    def _baseline(self, name: str, problem: Problem, effort: Effort) -> Measurement:
        return measure_baseline(name, self.device, self._answer(problem, effort), effort, self._cold(effort))

    def _answer(self, problem: Problem, effort: Effort) -> Reference:
        """Return the reference; the last one is kept: cases of one problem follow each other."""
        found = self._reference
        if found is None or (found.problem, found.most_products) != (problem, effort.products):
            self._reference = found = Reference(problem, effort.products)
        return found

    def _estimate(self, kin: object, problem: Problem, effort: Effort) -> Measurement | None:
        """Scale from a smaller problem, conversion and computation apart, where a run would take too long."""
        if kin not in self._largest:
            return None
        smaller, known = self._largest[kin]
        seconds, both = known.seconds() or 0.0, known.seconds("total") or 0.0
        scale = problem.flop / smaller.flop
        if seconds < _TRUSTED_SECONDS or seconds * scale <= effort.limit:
            return None
        size = "x".join(map(str, smaller.x_shape))
        reason = f"a run would take longer than {effort.limit:g} s: that of {size}, scaled by FLOP (--full runs it)"
        return Measurement(
            Status.ESTIMATED, reason, estimate_s=scale * seconds, estimate_convert_s=scale * (both - seconds)
        )

    def _cold(self, effort: Effort) -> Flush | None:
        if not effort.cold:
            return None
        if self._flush is None:
            self._flush = Flush(self.device)
        return self._flush

    def _require_device(self, name: str) -> None:
        try:
            self.device.synchronize()
        except Error as error:
            self.broken = f"{name} broke the device: {error}; nothing can be measured after it: repair it"
            raise BrokenDeviceError(self.broken) from error


def _setting(name: str, parameters: Parameters, problem: Problem) -> Setting:
    shape = replace(problem, height=problem.kernel, width=problem.kernel)
    return name, tuple(sorted(parameters.items())), shape
