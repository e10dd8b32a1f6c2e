"""Kernels of the lab under test: random problems of odd shapes, and the check against float64."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.kernel_harness import seeded
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Parameters, Variant


def random_problems(name: str, count: int, **fixed: int) -> tuple[Problem, ...]:
    """Odd sizes, stride 1-3, padding 0-3, channels 1-7, outputs 1-9, kernels 1-7; some fields fixed."""
    found = _problems(name, fixed)
    return tuple(next(found) for _ in range(count))


def problems_for(variant: Variant, count: int) -> tuple[Problem, ...]:
    """Random problems that the variant does with its usual parameters."""
    usual = variant.with_defaults({})
    done = (problem for problem in _problems(variant.name, {}) if not variant.refuses(problem, usual))
    return tuple(next(done) for _ in range(count))


def _problems(name: str, fixed: dict[str, int]) -> Iterator[Problem]:
    random = seeded(name)
    largest = {"batch": 3, "channels": 7, "height": 40, "width": 40, "outputs": 9, "kernel": 7, "stride": 3}
    while True:
        fields = {field: int(random.integers(1, most + 1)) for field, most in largest.items()}
        fields["padding"] = int(random.integers(0, 4))
        try:
            yield Problem(**(fields | fixed))
        except InputError:
            continue


def check(device: Device, variant: Variant, problem: Problem, parameters: Parameters | None = None) -> None:
    """The right answer, written as a whole, twice the same."""
    with Trial(device, variant, problem, parameters) as trial:
        first = trial.run()
        error = trial.error()
        assert error <= variant.tolerance, f"{variant.name} {trial.parameters} on {problem}: error {error:.3g}"
        assert (trial.run() == first).all()
        assert trial.trespass() == ""


def problem_id(problem: Problem) -> str:
    """For the names of tests."""
    p = problem
    return f"n{p.batch}c{p.channels}-{p.height}x{p.width}-o{p.outputs}k{p.kernel}s{p.stride}p{p.padding}"
