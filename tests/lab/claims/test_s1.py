"""lab/claims/s1.py: verdicts of the published table, every claim both ways, and those that are no pairs."""

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
from vgg16gpu_lab.claims.times import Entry, key
from vgg16gpu_lab.experiments.s1 import LARGER, NEAR, SIZES

PUBLISHED = {
    "S1.1": (DOES_NOT, "31: 0.077 against 0.071 ms); 2 of 5 as claimed; 2 too close"),
    "S1.4": (CANNOT_TELL, "direct 127: 0.401 against 0.402 ms); 8 of 10 as claimed; 2 too close"),
    "S1.6": (CANNOT_TELL, "not faster up to 511: 0.39x"),
    "S1.12": (DOES_NOT, "cuDNN is faster at 4 of 5 sizes (511: 0.99 against 1.16 ms)"),
    "S1.14": (DOES_NOT, "0.167 ms at 31, 1.81 ms at 511: 10.9x"),
}
SLOW = dict.fromkeys((str(size) for size in NEAR[1:]), 100.0)
MADE_UP = {
    "S1.1": ({"im2col_gemm_only": 1, "direct": 2}, {"im2col_gemm_only": 2, "direct": 1}),
    "S1.2": ({"im2col_gemm": 1, "direct": 2}, {"im2col_gemm": 2, "direct": 1}),
    "S1.3": ({}, {"im2col_gemm": 2}),
    "S1.4": ({"cudnn": 2}, {"im2col_gemm_only": 2}),
    "S1.5": ({"direct": 6.5}, {"direct": 2}),
    "S1.8": ({"direct_coalesced": 2}, {"shared_memory": 2}),
    "S1.9": ({"direct_coalesced": 2}, {"several_outputs": 2}),
    "S1.10": ({}, {"direct_rows": 2}),
    "S1.11": ({}, {"direct_planes": 2}),
    "S1.12": ({}, {"cudnn_three": 3}),
    "S1.14": ({"cudnn": 2}, {"511": 1, "cudnn": 9}),
    "S1.15": (SLOW, {}),
}
APART = {"S1.6", "S1.7", "S1.13"}


@pytest.mark.parametrize("number", of_seed("S1"))
def test_verdict_of_the_published_table(number):
    check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))


@pytest.mark.parametrize("number", sorted(set(MADE_UP) - {"S1.14"}))
def test_both_verdicts_and_none(number):
    check_both(number, *MADE_UP[number])


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(of_seed("S1"))
    check_theirs_as_ours(of_seed("S1"))


def sizes(method, chosen, *ratios):
    """CuDNN takes 1 ms, the method so much."""
    values = {}
    for size, ratio in zip(chosen, ratios, strict=False):
        values |= {key("S1", "methods", size, method): ratio, key("S1", "methods", size, "cudnn"): 1.0}
    return values


@pytest.mark.parametrize(("number", "method"), [("S1.6", "direct"), ("S1.13", "direct_coalesced")])
def test_crossover(number, method):
    def at(*ratios):
        verdict, figure = found(number, sizes(method, (31, 511, 1023, 8191), *ratios))
        return verdict, figure.split("; at powers of two")[0]

    assert at(0.5, 0.9, 1.3, 6) == (HOLDS, "faster from 1023 on (1023: 1 against 1.3 ms); 6x at 8191")
    assert at(2, 0.5, 3)[0] is DOES_NOT  # ahead from the start
    assert at(None, 2, 3)[0] is CANNOT_TELL  # or from where it was run
    assert at(0.5, 1.2, 0.9)[0] is CANNOT_TELL  # sizes are missing
    whole = sizes(method, SIZES + NEAR, *[1.0] * 9)
    assert found(number, whole)[0] is DOES_NOT


def test_powers_of_two_are_told_and_decide_nothing():
    values = sizes("direct", SIZES + NEAR, *[0.5] * 9) | sizes("direct", LARGER, 0.5, 2, 2, 2)
    verdict, figure = found("S1.6", values)
    assert verdict is DOES_NOT
    assert "; at powers of two: faster from 2048 on" in figure


def test_every_stride_that_was_run_is_a_case():
    """Theirs is not stated: a claim of cuDNN that holds with one stride alone does not hold."""

    def with_stride(*ratios):
        named = sizes("direct", SIZES + NEAR, *ratios)
        return {(*name[:4], "stride=2"): ms for name, ms in named.items()}

    never = sizes("direct", SIZES + NEAR, *[0.5] * 9)
    finding = ALL["S1.6"].claim.judge.find(times(never | with_stride(*[0.5] * 8, 2)))
    assert (finding.verdict, finding.holds, finding.cases, finding.which) == (DOES_NOT, 1, 2, ("stride 2",))
    assert "stride 2: faster from 8191 on" in finding.figure
    rows = {(*name[:3], "direct_rows", ""): ms for name, ms in never.items() if name[3] == "direct"}
    coalesced = {(*name[:3], "direct_coalesced", ""): ms for name, ms in rows.items()}
    assert found("S1.10", rows | coalesced)[0] is HOLDS
    slower = {(*name[:4], "stride=2"): 2 * ms for name, ms in rows.items()}
    assert found("S1.10", rows | coalesced | slower | {(*name[:4], "stride=2"): ms for name, ms in coalesced.items()})[
        0
    ] is (DOES_NOT)


def test_what_was_half_of_their_kernel_is_not_taken_for_it():
    def of(variant):
        methods = ("direct", "direct_coalesced", "im2col_gemm_only")
        return {key("S1", "methods", size, m): Entry(1.0, variant=variant) for size in SIZES for m in methods}

    verdict, figure = found("S1.1", of("direct-rows"))
    assert verdict is CANNOT_TELL
    assert figure.startswith("row direct of the record is direct-rows, not theirs; ")
    assert found("S1.1", of("direct-published"))[0] is CANNOT_TELL  # too close
    assert found("S1.10", of("direct-rows"))[0] is HOLDS  # which asks for rows alone
    assert found("S1.10", of("direct-published"))[1].startswith("row direct of the record is direct-published")


def test_setup_of_cudnn():
    name = key("S1", "methods", 511, "cudnn")
    assert found("S1.7", {name: Entry(1.0, setup_ms=9.0)}) == (DOES_NOT, "set-up 9 ms, a run 1 ms, at 511")
    assert found("S1.7", {name: Entry(1.0, setup_ms=0.01)})[0] is HOLDS
    assert found("S1.7", {name: Entry(1.0)}) == (CANNOT_TELL, "its set-up is not known")
    assert found("S1.7", {name: Entry(None, "missing", "no cuDNN")}) == (CANNOT_TELL, "no cuDNN")


def test_a_fixed_cost():
    def extra(small, large, **options):
        values = sizes("direct", (31, 511), 1.0, 1.0)
        values[key("S1", "methods", 31, "cudnn")], values[key("S1", "methods", 511, "cudnn")] = 1 + small, 1 + large
        return found("S1.14", values, **options)

    assert extra(0.5, 0.75)[0] is HOLDS
    assert extra(0.5, 1.5) == (DOES_NOT, "0.5 ms at 31, 1.5 ms at 511: 3x")
    assert extra(-0.5, 1.5)[0] is CANNOT_TELL
    assert extra(0.5, 0.75, floors={"S1": 0.2})[0] is CANNOT_TELL


def test_launches_count_for_nothing():
    values = {key("S1", "methods", 255, "shared_memory"): 0.0046, key("S1", "methods", 255, "direct_coalesced"): 0.0041}
    values |= {key("S1", "methods", 511, "shared_memory"): 0.05, key("S1", "methods", 511, "direct_coalesced"): 0.08}
    judge_of = ALL["S1.8"].claim.judge
    assert judge_of.find(times(values)).verdict is DOES_NOT
    finding = judge_of.find(times(values, floors={"S1": 0.0025}))
    assert (finding.verdict, finding.holds, finding.cases) == (HOLDS, 1, 1)
    assert (finding.which, finding.short) == (("511",), ("255",))
    assert finding.figure.endswith("; 1 of 2 too short to count")
