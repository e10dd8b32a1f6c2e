"""lab/claims/s4.py: what the report says of itself, every claim both ways, and its chart."""

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
from vgg16gpu_lab.experiments import s4

PUBLISHED = {
    "S4.1": (CANNOT_TELL, "1.2x is said"),
    "S4.6": (CANNOT_TELL, "refilled without a barrier (3.3)"),
    "S4.8": (DOES_NOT, "one filter for all input channels (3.1.1)"),
    "S4.9": (HOLDS, "16 for 4 outputs instead of 36, 2.25x"),
}
WARPS = {"block=8x8": 2, "block=16x16": 2}
MADE_UP = {
    "S4.1": ({"cudnn": 1.2}, {"cudnn": 0.5}),
    "S4.5": ({"halo_edge": 2}, {"halo_even": 2}),
    "S4.6": ({"halo_channels": 2}, {"halo_prefetch": 2}),
    "S4.7": ({"halo_float4": 2}, {"halo_channels": 2}),
    "S4.10": ({"halo_edge": 2}, {"halo_even": 2}),
    "S4.11": ({"block=4x8": 1.5}, {}),
    "S4.12": (WARPS, {"block=4x8": 2}),
    "S4.13": ({"halo_oc_outside": 2}, {"halo_channels": 2}),
    "S4.14": ({"halo_even": 2}, {"halo_float4": 2}),
    "S4.15": ({"1024": 4, "64 cudnn": 1}, {"1024": 4}),
    "S4.16": ({}, {"simple": 2}),
    "S4.17": ({"winograd": 0.5}, {"winograd": 2}),
}
APART = {"S4.2", "S4.3", "S4.8", "S4.9", "S4.15"}


@pytest.mark.parametrize("number", of_seed("S4"))
def test_verdict_of_the_report_itself(number):
    check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))


@pytest.mark.parametrize("number", [number for number in MADE_UP if number not in APART])
def test_both_verdicts_and_none(number):
    check_both(number, *MADE_UP[number])


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(of_seed("S4"))
    assert "S4.4" not in ALL  # nobody says it
    check_theirs_as_ours(of_seed("S4"))


def chart(ratio, **changes):
    """A full one; `ratio(size, channels)` is how many times as fast as cuDNN ours is."""
    values = {}
    for size in s4.CHART_SIZES:
        for channels in s4.CHART_CHANNELS:
            parameter = f"channels={channels} outputs={channels} kernel=6 stride=1"
            values[key("S4", "chart", size, "direct", parameter)] = Entry(1.0, error=1e-7, **changes)
            values[key("S4", "chart", size, "cudnn", parameter)] = Entry(ratio(size, channels))
    return values


def test_the_chart():
    whole = chart(lambda _, channels: 10 / channels)
    least, most = "0.156x (size 64, 64 channels)", "10x (size 64, 1 channels)"
    assert found("S4.2", whole) == (HOLDS, f"{least} to {most}, 30 points of 30")
    assert found("S4.3", whole)[0] is HOLDS
    flat = chart(lambda *_: 0.5)
    assert found("S4.2", flat)[0] is DOES_NOT
    assert found("S4.3", flat) == (DOES_NOT, "ahead of cuDNN at 0 of 30 points; the winner changes at sizes: none")
    part = dict(list(flat.items())[:8])
    assert found("S4.2", part)[0] is found("S4.3", part)[0] is CANNOT_TELL
    no_library = {name: entry for name, entry in flat.items() if name[3] == "direct"}
    assert found("S4.2", no_library) == (CANNOT_TELL, "not run")


def test_points_that_are_too_short_count_for_nothing():
    mixed = chart(lambda size, channels: 10 / channels if size > 64 else 0.001)
    finding = ALL["S4.2"].claim.judge.find(times(mixed, floors={"S4": 0.04}))
    assert finding.verdict is HOLDS
    assert finding.figure.endswith("24 points of 30, 6 too short to count")
    assert set(finding.short) == {f"size 64, {channels} channels" for channels in s4.CHART_CHANNELS}
    everything = ALL["S4.3"].claim.judge.find(times(mixed, floors={"S4": 9.0}))
    assert (everything.verdict, everything.figure) == (CANNOT_TELL, "30 too short to count")


def test_the_lead_at_small_sizes():
    def lead(small):
        return found("S4.15", chart(lambda size, _: small if size < 1024 else 2.0))

    assert lead(3.0)[0] is HOLDS
    assert lead(2.0)[0] is DOES_NOT
    assert lead(1.5)[0] is DOES_NOT


def test_our_best_kernel_is_not_taken_for_theirs():
    best = chart(lambda *_: 10, variant="halo-prefetch")
    assert found("S4.2", best) == (CANNOT_TELL, "row direct of the record is halo-prefetch, not theirs")


def test_right_at_every_shape():
    whole = {name: entry for name, entry in chart(lambda *_: 1.0).items() if name[3] != "cudnn"}
    assert found("S4.8", whole) == (HOLDS, "right at 30 of 30 rows, largest error 1.0e-07")
    name = next(iter(whole))
    assert found("S4.8", whole | {name: Entry(None, "wrong", "error 0.5")})[0] is DOES_NOT
    assert found("S4.8", whole | {name: Entry(None, "no room", "too large")})[0] is CANNOT_TELL
    assert found("S4.8", chart(lambda *_: 1.0))[0] is HOLDS  # cuDNN's rows are none of ours


def test_products_are_the_same_for_both():
    assert ALL["S4.9"].ours == ALL["S4.9"].theirs
