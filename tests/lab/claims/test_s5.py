"""lab/claims/s5.py: verdicts of the published table, every claim both ways, and those that are no pairs."""

from itertools import pairwise

import pytest

from tests.lab.claims.numbers import (
    ALL,
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    check_both,
    check_published,
    check_theirs_as_ours,
    found,
    of_seed,
    times,
)
from vgg16gpu_lab.claims.s5 import LADDER, ODD_SIZES
from vgg16gpu_lab.claims.times import Entry, key
from vgg16gpu_lab.experiments import s5

PUBLISHED = {
    "S5.1": (HOLDS, "9.35x"),
    "S5.2": (HOLDS, "17.4x"),
    "S5.3": (HOLDS, "5.24x (229 against 1198 ms)"),
    "S5.8": (DOES_NOT, "version_a, 1 and 5: 22364 against 20803 ms"),
    "S5.10": (HOLDS, "244 -> 122 -> 61 -> 30 -> 15 -> 7"),
    "S5.11": (HOLDS, "9.35x"),
    "S5.12": (HOLDS, "162x"),
}
CAUSES = [
    f"{place} {add} {grid}" for place in ("host", "device") for add in ("serial", "tree") for grid in ("1d", "2d")
]
MADE_UP = {
    "S5.1": ({"cpu": 2}, {"cpu": 0.5}),
    "S5.2": ({"A": 2, "version_a": 2}, {"B": 2, "version_b": 2}),
    "S5.3": ({"version_b": 5}, {"version_b": 2}),
    "S5.4": ({name: 2 for name in CAUSES if "host" in name}, {"device tree 2d": 2}),
    "S5.5": ({name: 2 for name in CAUSES if "serial" in name}, {"host tree 1d": 2}),
    "S5.6": ({name: 2 for name in CAUSES if "1d" in name}, {"host serial 2d": 2}),
    "S5.7": ({"onnxruntime_cpu": 2}, {"onnxruntime_cpu": 0.5}),
    "S5.8": ({}, {"iterations=1": 2}),
    "S5.11": ({"cpu": 9}, {"cpu": 7}),
    "S5.12": ({"cpu": 150}, {"cpu": 20}),
    "S5.14": ({"conv1_1": 1}, {"conv1_1": 0.01}),
}
APART = {"S5.9", "S5.10", "S5.13"}


@pytest.mark.parametrize("number", of_seed("S5"))
def test_verdict_of_the_published_table(number):
    check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))


@pytest.mark.parametrize("number", MADE_UP)
def test_both_verdicts_and_none(number):
    check_both(number, *MADE_UP[number])


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(of_seed("S5"))
    check_theirs_as_ours(of_seed("S5"))


def test_a_cause_is_removed_beside_all_others():
    labels = ALL["S5.5"].claim.judge.find(times_of({name: 2.0 if "serial" in name else 1.0 for name in CAUSES})).which
    assert labels == ("host 1d", "host 2d", "device 1d", "device 2d")


def times_of(causes):
    return times({key("S5", "causes", 244, name): value for name, value in causes.items()})


def rungs(precision="fp32", tolerance=1e-4, error=1e-6, **statuses):
    return {
        key("S5", LADDER, "", letter): Entry(1.0, status, "far off", error, tolerance=tolerance, precision=precision)
        for letter, status in statuses.items()
    }


def test_rungs_are_right():
    verdict, figure = found("S5.9", rungs(A="right", B="right", C="right"))
    assert (verdict, figure) == (HOLDS, "fp32: 3 of 3 within 0.0001 (largest 1.0e-06)")
    for status in ("wrong", "failed"):
        assert found("S5.9", rungs(A="right", B="right", C=status)) == (DOES_NOT, "C: far off")
    assert found("S5.9", rungs(A="right"))[0] is CANNOT_TELL
    assert found("S5.9", rungs(A="right", B="right", error=1e-3))[0] is DOES_NOT


def test_other_precisions_have_bounds_of_their_own_and_are_not_counted():
    values = rungs(A="right", B="right") | rungs("int8", 0.5, 0.13, P="right") | rungs("fp16", 0.02, 4e-3, L="right")
    assert found("S5.9", values) == (
        HOLDS,
        "fp32: 2 of 2 within 0.0001 (largest 1.0e-06); int8: 1 of 1 within 0.5: not counted; "
        "fp16: 1 of 1 within 0.02: not counted",
    )


def test_s5s_table_counts_before_the_ladder_and_either_will_do():
    ladder = {key("S5", LADDER, "", letter): Entry(time, error=1e-6) for letter, time in {"A": 30.0, "B": 10.0}.items()}
    table = {
        key("S5", s5.TABLE, 244, method, "iterations=5"): Entry(time, error=2e-6)
        for method, time in {"version_a": 40.0, "version_b": 10.0}.items()
    }
    assert found("S5.2", ladder)[1].startswith("3x")
    assert found("S5.2", ladder | table)[1].startswith("4x")
    assert found("S5.9", table) == (HOLDS, "fp32: 2 of 2 within 0.0001 (largest 2.0e-06)")


def test_iterations_that_were_not_made_say_nothing():
    def runs(many, status="right"):
        made = {("version_a", 1): 10, ("version_a", 5): 5, ("version_b", 1): 10, ("version_b", 5): 5}
        return {
            key("S5", s5.TABLE, 244, method, f"iterations={n}"): Entry(
                1.0, status if n == 500 else "right", samples=samples
            )
            for (method, n), samples in (made | {("version_b", 500): many}).items()
        }

    assert found("S5.8", runs(500))[0] is HOLDS
    verdict, figure = found("S5.8", runs(3))
    assert verdict is CANNOT_TELL
    assert figure.endswith("1 missing: 3 runs of 500 were made")
    verdict, figure = found("S5.8", runs(None, "estimated"))
    assert verdict is CANNOT_TELL
    assert figure.endswith("1 missing: no run was made, their time is an estimate")
    name, reason = key("S5", s5.TABLE, 244, "version_b", "iterations=500"), "not measured: 500 runs would take 900 s"
    verdict, figure = found("S5.8", runs(None) | {name: Entry(None, "missing", reason)})
    assert verdict is CANNOT_TELL
    assert figure.endswith(f"1 missing: {reason}")


def pools(**changes):
    """What each of the five pools wrote: rows, and how it differs from numpy's."""
    sizes = pairwise(ODD_SIZES)
    rows = {
        key("S5", "pool", size, "pool_columns", "after ReLU"): Entry(float(half), error=0.0) for size, half in sizes
    }
    return rows | {
        key("S5", "pool", size, "pool_columns", "after ReLU"): e for size, e in changes.get("rows", {}).items()
    }


def test_pools_are_run():
    assert found("S5.10", pools())[0] is HOLDS
    assert found("S5.10", pools(rows={61: Entry(31.0, error=0.0)}))[0] is DOES_NOT
    assert found("S5.10", pools(rows={61: Entry(30.0, error=0.1)}))[1].endswith("4 of 5 equal numpy's")
    assert found("S5.10", {})[0] is CANNOT_TELL


def test_a_maximum_from_zero():
    def errors(after, elsewhere):
        names = (key("S5", "pool", 244, "start_at_zero", maps) for maps in ("after ReLU", "any sign"))
        return found("S5.13", dict(zip(names, (Entry(1.0, error=after), Entry(1.0, error=elsewhere)), strict=True)))

    assert errors(0.0, 0.5)[0] is HOLDS
    assert errors(0.1, 0.5)[0] is DOES_NOT
    assert errors(0.0, 0.0)[0] is CANNOT_TELL  # the other maps must tell the two apart
