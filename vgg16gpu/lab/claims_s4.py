"""What S4 claims: a hand-written direct convolution against cuDNN, at one point and elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vgg16gpu.lab.claims_judge import (
    Claim,
    Compared,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    compare,
    faster,
    missing,
    reason,
)
from vgg16gpu.lab.claims_times import Entry, Quantity, Times, key, number, one
from vgg16gpu.lab.measure import Status
from vgg16gpu.lab.published import published
from vgg16gpu.lab.seeds.s4 import BEST, CHART_CHANNELS, CHART_SIZES, POINT, WINOGRAD_METHODS

SEED: Final = "S4"
SIZE: Final = f"{POINT.height}x{POINT.width}"
OWN: Final = "direct"  # the kernel that theirs was meant to be
CUDNN: Final = "cudnn"
WINOGRAD: Final = "winograd"
TABLES: Final = ("conv2d", "chart")  # those that have it
POINTS: Final = len(CHART_SIZES) * len(CHART_CHANNELS)
LOWEST, HIGHEST = 0.1, 10.0  # of cuDNN's speed, elsewhere
WITHIN: Final = 2.0  # "0.1 to 10 times": from a least in 0.05 to 0.2, to a most in 5 to 20
_SHAPE: Final = re.compile(r"channels=(\d+) outputs=\1 kernel=6 stride=1")  # of a point of the chart that they promise


def _point(first: str, second: str) -> Iterator[Pair]:
    parameter = f"channels={POINT.channels} outputs={POINT.outputs} kernel={POINT.kernel} stride={POINT.stride}"
    yield Pair("", one(SEED, "conv2d", SIZE, first, parameter), one(SEED, "conv2d", SIZE, second, parameter))


def _layer(first: str, second: str) -> Pair:
    parameter = "channels=64 outputs=64 kernel=3 stride=1"
    ours, other = (one(SEED, "winograd", 256, method, parameter) for method in (first, second))
    return Pair(f"{first} and {second}", ours, other)


def _chart(times: Times) -> tuple[dict[tuple[str, int], Compared], list[str]]:
    """Ours and cuDNN, by size and channels; and why others are missing."""
    found: dict[tuple[str, int], Compared] = {}
    lacking: list[str] = []
    for name in times.rows(SEED, "chart", OWN):
        if shape := _SHAPE.fullmatch(name[4]):
            pair = Pair("", Quantity((name,)), Quantity(((*name[:3], CUDNN, name[4]),)))
            compared, reasons = compare([pair], times)
            found |= {(name[2], int(shape[1])): each for each in compared}
            lacking += reasons
    return found, lacking if found else lacking or [times.absent]


def _elsewhere() -> Judge:
    """Least and most of the chart."""

    def find(times: Times) -> Finding:
        found, lacking = _chart(times)
        if not found:
            return missing(lacking)
        ratios = {place: each.ratio for place, each in found.items()}
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        figure = f"{_at(low, ratios)} to {_at(high, ratios)}, {len(found)} points"
        near = all(1 / WITHIN <= ratios[at] / said <= WITHIN for at, said in ((low, LOWEST), (high, HIGHEST)))
        if len(found) < POINTS:
            return Finding(f"{figure} of {POINTS}", Verdict.CANNOT_TELL)
        return Finding(figure, Verdict.HOLDS if near else Verdict.DOES_NOT)

    return Judge((), find)


def _depends() -> Judge:
    """Whether the winner changes with the channels at some size."""

    def find(times: Times) -> Finding:
        found, lacking = _chart(times)
        if not found:
            return missing(lacking)
        sizes = sorted({size for size, _ in found}, key=int)
        changes = [size for size in sizes if _changes([each for at, each in found.items() if at[0] == size])]
        ahead = sum(each.is_ahead for each in found.values())
        figure = f"ahead of cuDNN at {ahead} of {len(found)} points; the winner changes at sizes: "
        verdict = Verdict.HOLDS if changes else Verdict.DOES_NOT if len(found) == POINTS else Verdict.CANNOT_TELL
        return Finding(figure + (", ".join(changes) or "none"), verdict)

    return Judge((), find)


def _changes(found: list[Compared]) -> bool:
    return any(each.is_ahead for each in found) and any(each.is_behind for each in found)


def _at(place: tuple[str, int], ratios: dict[tuple[str, int], float]) -> str:
    return f"{number(ratios[place])}x (size {place[0]}, {place[1]} channels)"


def _right_everywhere() -> Judge:
    """Every row of our kernel, whatever the shape, was checked."""

    def find(times: Times) -> Finding:
        entries = [entry for table in TABLES for entry in times.rows(SEED, table, OWN).values()]
        if not entries:
            return missing([times.absent])
        right = [entry for entry in entries if _is_right(entry)]
        errors = [entry.error for entry in right if entry.error is not None]
        figure = f"{BEST} right at {len(right)} of {len(entries)} shapes"
        if len(right) == len(entries):
            return Finding(f"{figure}, largest error {max(errors):.1e}", Verdict.HOLDS)
        first = next(entry for entry in entries if not _is_right(entry))
        is_wrong = any(entry.is_fault for entry in entries)
        return Finding(f"{figure}; {reason(first)}", Verdict.DOES_NOT if is_wrong else Verdict.CANNOT_TELL)

    return Judge((), find)


def _is_right(entry: Entry) -> bool:
    return entry.status == Status.RIGHT and entry.error is not None


_SAID: Final = published()[key(SEED, "claim", SIZE, "direct_over_cudnn_speed", "ratio_not_ms")]

CLAIMS: Final = (
    Claim(
        SEED,
        f"About {_SAID:g} times as fast as cuDNN at 6x{SIZE}, kernel 6x6, 6 outputs",
        "said",
        f"{BEST} against cuDNN there, set-up left out",
        about(_SAID, _point(OWN, CUDNN)),
        theirs=Finding(f"{_SAID:g}x is said, no times", Verdict.CANNOT_TELL),
    ),
    Claim(
        SEED,
        "Elsewhere from 0.1 to 10 times cuDNN's speed",
        "said",
        f"least and most over sizes and channels, within a factor of {WITHIN:g} of these",
        _elsewhere(),
    ),
    Claim(
        SEED,
        "Which of the two is faster depends on the channels",
        "said",
        "at some size the winner changes with the channels",
        _depends(),
    ),
    Claim(
        SEED,
        "Their GPU kernel is faster than the CPU",
        "said",
        f"{BEST} against numpy in float64 on the host, at the point",
        faster(_point(OWN, "cpu")),
    ),
    Claim(
        SEED,
        "Sharing tile and halo evenly, with float4 loads, pays",
        "said",
        "even halo against no tile, several output channels per thread in both, at the point",
        faster(_point("halo_shared", "several_channels")),
    ),
    Claim(
        SEED,
        "A prefetch of the next channel pays",
        "said",
        "with a true prefetch (two tiles) against one tile, at the point",
        faster(_point(OWN, "halo_shared")),
        theirs=Finding("one tile, refilled without a barrier (in its source): no prefetch", Verdict.CANNOT_TELL),
    ),
    Claim(
        SEED,
        "Sums of several outputs in registers pay",
        "said",
        "several output channels per thread against one, at the point",
        faster(_point("several_channels", "direct_chw")),
    ),
    Claim(
        SEED,
        "It is a convolution, for every shape",
        "practice",
        "checked against float64 wherever it was run: point and chart",
        _right_everywhere(),
        theirs=Finding(
            "the filter index forgets the channel, float4 asks for widths of 4n (in its source)", Verdict.DOES_NOT
        ),
    ),
    Claim(
        SEED,
        "Winograd is a way to be faster (named, not built)",
        "said",
        "F(2x2,3x3) with its transforms against our other kernels, 64 to 64 channels at 256",
        faster(_layer(WINOGRAD, other) for other in WINOGRAD_METHODS if other not in (WINOGRAD, CUDNN)),
    ),
)
