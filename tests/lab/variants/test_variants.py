"""Every variant of the lab against float64: once with edges on all sides, and sweeps of problems and parameters."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from tests.lab.harness import check, problem_id, problems_for
from tests.support.selection import ALL, choice
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.dry_run.process import Guarded
from vgg16gpu_lab.measure.trial import MAX_THREADS, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant, places
from vgg16gpu_lab.variants import variants

VARIANTS = tuple(variant for variant in variants() if not variant.hopper)  # those have tests of their own
EDGES = (
    Problem(2, 3, 19, 37, 5, padding=1),  # blocks, tiles and groups that are not full, on all sides
    Problem(1, 2, 33, 36, 9, padding=1),  # rows that can be copied by 16 bytes; a pixel more than whole blocks
)
SMALL = (
    *EDGES,
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


@pytest.mark.sanitize
@pytest.mark.every_case
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_each_is_right_and_touches_nothing_beside_its_arrays(device: Device, variant: Variant) -> None:
    """Check what a dry run looks for: `lab run` makes none of the package's variants."""
    for problem in EDGES:
        for poison in (0xFF, 0x7F) if choice() == ALL else (0xFF,):  # NaN, and 3e38
            with Guarded(poison, device, variant, problem) as trial:
                if forbidden := os.environ.get("VGG16GPU_SANITIZE") == "address":
                    trial.forbid_gaps()
                first = trial.run()
                assert trial.error() <= variant.allowed(problem), problem
                assert (trial.run() == first).all()
                assert forbidden or trial.trespass() == ""


@pytest.mark.first_case(reason="test_each_is_right_and_touches_nothing_beside_its_arrays has each variant")
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("variant", "problem"),
    cases(
        [(variant, problem) for variant in VARIANTS for problem in SMALL if usual(variant, problem)]
        + [(variant, problem) for variant in VARIANTS for problem in problems_for(variant, 3)]
    ),
)
def test_other_problems(device: Device, variant: Variant, problem: Problem) -> None:
    check(device, variant, problem)


@pytest.mark.first_case(reason="lenet/test_forward.py adds a bias with two of them")
@pytest.mark.sanitize
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant.takes_bias], ids=lambda each: each.name)
def test_the_bias_is_added_once(device: Device, variant: Variant) -> None:
    biased = replace(EDGES[0], bias=True)
    check(device, variant, biased)
    with Trial(device, variant, biased) as ours, Trial(device, variant, EDGES[0]) as plain:
        assert ours.bias is not None
        assert (ours.run() == plain.run() + ours.bias.reshape(-1, 1, 1)).all()  # after the sum, as S3 says


@pytest.mark.first_case(reason="a sweep of values; each variant runs with its usual ones")
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
