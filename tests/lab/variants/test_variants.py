"""Every variant of the lab against float64: random problems, small ones, each value of a parameter."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from tests.lab.harness import check, problem_id, problems_for
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu_lab.measure.dry_run.process import Guarded
from vgg16gpu_lab.measure.trial import MAX_THREADS, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant, places
from vgg16gpu_lab.variants import variants

VARIANTS = tuple(variant for variant in variants() if not variant.hopper)  # those have tests of their own
SMALL = (
    Problem(2, 3, 9, 7, 5, padding=1),
    Problem(1, 2, 8, 19, 3, kernel=4, stride=2, padding=2),
    Problem(1, 3, 6, 8, 2, kernel=5, stride=3, padding=3),
)


def usual(variant: Variant, problem: Problem) -> bool:
    """Whether it does this problem with its usual parameters."""
    return not variant.refuses(problem, variant.with_defaults({}))


def changed(variant: Variant) -> list[dict[str, int]]:
    """Each value of each parameter that can be launched."""
    return [
        {name: value}
        for name, values in variant.parameters.items()
        for value in values
        if launchable(variant, {name: value})
    ]


def launchable(variant: Variant, parameters: dict[str, int]) -> bool:
    problem, given = Problem(1, 2, 9, 9, 2), variant.with_defaults(parameters)
    if variant.refuses(problem, given):
        return False
    launches = variant.launches(problem, given, places(problem, variant.workspace_nbytes(problem, given))[0])
    return all(math.prod(step.block) <= MAX_THREADS for step in (*launches.convert, *launches.compute))


def cases(found: list[tuple[Variant, Problem]]) -> list[object]:
    return [pytest.param(variant, problem, id=f"{variant.name}-{problem_id(problem)}") for variant, problem in found]


@pytest.mark.parametrize(
    ("variant", "problem"), cases([(variant, problem) for variant in VARIANTS for problem in problems_for(variant, 3)])
)
def test_random_problems(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("variant", "problem"),
    cases([(variant, problem) for variant in VARIANTS for problem in SMALL if usual(variant, problem)]),
)
def test_small_problems(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("variant", "problem"),
    cases([(each, problem) for each in VARIANTS for problem in SMALL if each.takes_bias and usual(each, problem)]),
)
def test_the_bias_is_added_once(device: Device, variant: Variant, problem: Problem) -> None:
    biased = replace(problem, bias=True)
    check(device, variant, biased)
    with Trial(device, variant, biased) as ours, Trial(device, variant, problem) as plain:
        assert ours.bias is not None
        assert (ours.run() == plain.run() + ours.bias.reshape(-1, 1, 1)).all()  # after the sum, as S3 says


@pytest.mark.sanitize
@pytest.mark.parametrize("poison", [0xFF, 0x7F], ids=["nan", "3e38"])
@pytest.mark.parametrize(
    ("variant", "problem"),
    cases([(variant, problem) for variant in VARIANTS for problem in SMALL if usual(variant, problem)]),
)
def test_nothing_beside_the_arrays_is_touched(device: Device, variant: Variant, problem: Problem, poison: int) -> None:
    """What a dry run looks for: `lab run` makes none of the package's variants."""
    with Guarded(poison, device, variant, problem) as trial:
        if os.environ.get("VGG16GPU_SANITIZE") == "address":
            trial.forbid_gaps()
            assert trial.error() <= variant.allowed(problem)
        else:
            assert trial.error() <= variant.allowed(problem)
            assert trial.trespass() == ""


@pytest.mark.slow(reason="`make sanitize` runs them in other orders")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_threads_may_run_in_reverse_order(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where a missing barrier shows then."""
    monkeypatch.setenv("VGG16GPU_ORDER", "reverse")
    device = CpuDevice()
    for problem in SMALL:
        if usual(variant, problem):
            check(device, variant, problem)
    device.close()


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [
        pytest.param(variant, parameters, id=f"{variant.name}-{'-'.join(f'{k}{v}' for k, v in parameters.items())}")
        for variant in VARIANTS
        for parameters in changed(variant)
    ],
)
def test_values_of_parameters(device: Device, variant: Variant, parameters: dict[str, int]) -> None:
    for problem in (Problem(2, 3, 33, 16, 4, padding=1), Problem(1, 3, 32, 70, 9, padding=1)):
        check(device, variant, problem, parameters)
