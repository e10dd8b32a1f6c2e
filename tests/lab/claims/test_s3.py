"""lab/claims/s3.py: verdicts of the published tables, every claim both ways, and those that are no pairs."""

from dataclasses import replace

import pytest

from tests.lab.claims.numbers import (
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    check_both,
    check_published,
    check_theirs_as_ours,
    found,
    of_seed,
)
from vgg16gpu_lab.claims.times import Entry, key

PUBLISHED = {
    "S3.1": (HOLDS, "1.31x (forward: 1430 against 1875 ms)"),
    "S3.2": (DOES_NOT, "6.55x (forward: 286 against 1875 ms)"),
    "S3.3": (HOLDS, "5x to 24.6x"),
    "S3.4": (DOES_NOT, "conv1: 40.7 against 36.4 ms"),
    "S3.5": (HOLDS, "1.08x to 1.09x"),
    "S3.6": (HOLDS, "77%: 220 of 286 ms"),
    "S3.7": (CANNOT_TELL, "not done"),
    "S3.11": (DOES_NOT, "1.31x (forward: 1430 against 1875 ms)"),
    "S3.12": (HOLDS, "89% of sequential_cpu, 86% of parallel_im2col"),
    "S3.13": (DOES_NOT, "0 of 2"),
    "S3.14": (CANNOT_TELL, "292 against 286 ms"),
    "S3.15": (CANNOT_TELL, "287 against 292 ms"),
}
MADE_UP = {
    "S3.1": ({"sequential_cpu": 2}, {"parallel_im2col": 2}),
    "S3.2": ({"sequential_cpu": 2}, {"sequential_cpu": 7}),
    "S3.3": ({"parallel_im2col": 2}, {"direct_parallel": 2}),
    "S3.4": ({"direct_parallel": 2}, {"tiled_shared": 2}),
    "S3.5": ({"tiled_shared": 2}, {"constant_weights": 2}),
    "S3.6": ({"forward": 10}, {"forward": 2.5}),
    "S3.9": ({}, {"128": 200}),
    "S3.11": ({"sequential_cpu": 2}, {"sequential_cpu": 7}),
    "S3.12": ({"forward": 3}, {"forward": 5}),
    "S3.13": ({}, {"tiled_shared": 2}),
    "S3.14": ({"direct_parallel": 2}, {"tiled_shared": 2}),
    "S3.15": ({"tiled_shared": 2}, {"constant_weights": 2}),
}
APART = {"S3.7", "S3.8", "S3.10"}


@pytest.mark.parametrize("number", of_seed("S3"))
def test_verdict_of_the_published_table(number):
    check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))


@pytest.mark.parametrize("number", MADE_UP)
def test_both_verdicts_and_none(number):
    check_both(number, *MADE_UP[number])


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(of_seed("S3"))
    check_theirs_as_ours(of_seed("S3"))


def lenet(shares, error=1e-7, status="right"):
    return {
        key("S3", "accuracy", 300, method, "right answers"): Entry(share, status, error=error)
        for method, share in shares.items()
    }


VERSIONS = dict.fromkeys(
    ("sequential_cpu", "parallel_im2col", "direct_parallel", "tiled_shared", "constant_weights"), 0.9
)


def test_versions_are_right_and_as_accurate():
    everything = VERSIONS | {"float64": 0.9}
    assert found("S3.7", lenet(everything))[0] is HOLDS
    assert found("S3.8", lenet(everything)) == (HOLDS, "90.00% to 90.00% right, float64 90.00%")
    assert found("S3.7", lenet(everything, 1e-3))[0] is DOES_NOT
    wrong = lenet(everything) | lenet({"tiled_shared": 0.1}, 0.5, "wrong")
    assert found("S3.7", wrong) == (DOES_NOT, "5 of 5 checked, largest error 5.0e-01; wrong: tiled_shared")
    assert found("S3.8", wrong)[0] is DOES_NOT
    few = lenet({"float64": 0.9, "direct_parallel": 0.9})
    assert found("S3.7", few)[0] is CANNOT_TELL
    assert "missing: sequential_cpu" in found("S3.8", few)[1]


def test_tuning():
    def tiles(**values):
        names = {(tile, layer): ms for tile, ms in values.items() for layer in ("conv1", "conv2")}
        return {key("S3", "tile", 128, "tiled_shared", f"{at[1]} tile={at[0][1:]}"): ms for at, ms in names.items()}

    assert found("S3.10", tiles(t8=2, t16=3, t32=4)) == (HOLDS, "8 is best: 4 ms, 8 with 32: 2x")
    assert found("S3.10", tiles(t8=4, t16=3))[0] is HOLDS  # whichever is the best
    assert found("S3.10", tiles(t8=3.1, t16=3))[0] is DOES_NOT
    assert found("S3.10", tiles(t16=3))[0] is CANNOT_TELL
    assert found("S3.10", tiles(t8=None, t16=3))[0] is CANNOT_TELL
    assert found("S3.10", tiles(t8=2, t16=3), floors={"S3": 1.0})[0] is CANNOT_TELL


def test_who_had_the_name_once_is_not_asked_for_scores():
    old = {"parallel_im2col": "im2col-vector", "constant_weights": "constant-weights"}
    scores = lenet(VERSIONS | {"float64": 0.9})
    others = {name: replace(entry, variant=old.get(name[3], "")) for name, entry in scores.items()}
    verdict, figure = found("S3.7", others)
    assert verdict is CANNOT_TELL
    assert figure.startswith("3 of 5 checked")
    assert found("S3.8", others) == (CANNOT_TELL, "missing: parallel_im2col, constant_weights")


def test_what_had_the_name_once_is_not_taken():
    names = {key("S3", "lenet", 128, method, f"batch={n} forward"): method for n in range(8) for method in VERSIONS}
    old = {"parallel_im2col": "im2col-vector", "constant_weights": "constant-weights"}
    values = {name: Entry(1.0, variant=old.get(method, "")) for name, method in names.items()}
    assert found("S3.1", values) == (CANNOT_TELL, "row parallel_im2col of the record is im2col-vector, not ...")
    assert found("S3.15", values)[1].startswith("row constant_weights of the record is constant-weights")
    assert found("S3.14", values)[1].endswith("1 too close")
