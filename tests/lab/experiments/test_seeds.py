"""The experiments: every published row of S1, S2 and S4 has a case, every case a variant that takes its problem."""

import pytest

from vgg16gpu_lab.experiment import Choice
from vgg16gpu_lab.experiments import s1, s2, s4
from vgg16gpu_lab.measure.baseline import BASELINES
from vgg16gpu_lab.published import published
from vgg16gpu_lab.variants import variants

SEEDS = (s1, s2, s4)
NAMES = {variant.name: variant for variant in variants()}


@pytest.fixture(params=SEEDS, ids=lambda seed: seed.__name__.rsplit(".")[-1])
def experiment(request):
    return request.param.EXPERIMENT


def cases(experiment, **choice):
    return experiment.cases(Choice(**choice))


def keys(experiment, **choice):
    found = cases(experiment, **choice)
    return [(experiment.name, case.table, case.size, case.method, case.parameter) for case in found]


def test_every_published_row_has_a_case(experiment):
    theirs = {key for key in published() if key[0] == experiment.name and key[1] != "claim"}
    assert theirs <= set(keys(experiment, kind="cuda"))


def test_every_claim_of_a_ratio_has_a_row(experiment):
    theirs = {key for key in published() if key[0] == experiment.name and key[1] == "claim"}
    assert {row.key for row in experiment.ratios(())} == theirs


def test_no_row_is_there_twice(experiment):
    for kind in ("cpu", "cuda"):
        found = keys(experiment, kind=kind, channels=(3, 5), outputs=(1, 4))
        assert len(set(found)) == len(found)


def test_every_case_has_a_variant_that_takes_it(experiment):
    for case in cases(experiment, kind="cuda"):
        if case.variant in BASELINES:
            continue
        variant = NAMES[case.variant]
        assert experiment.name in variant.seeds, case.variant
        assert not variant.refuses(case.problem, variant.with_defaults(case.parameters)), case


def test_published_rows_are_of_their_problem(experiment):
    for case, key in zip(cases(experiment, kind="cuda"), keys(experiment, kind="cuda"), strict=True):
        if key in published():
            assert case.problem.height == int(case.size.split("x")[0])
            assert (case.problem.channels, case.problem.outputs) == (3, 1)
            block = case.parameters.get("block")
            if "block=" in case.parameter:
                assert f"block={block}" == case.parameter
