"""What S3 claims: five versions of LeNet's convolutions, and what a pass is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from vgg16gpu_lab.claims.judge import (
    ABOUT,
    LAUNCHES,
    MARGIN,
    Claim,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    decided,
    faster,
    missing,
    reason,
    same,
    verdict_of,
)
from vgg16gpu_lab.claims.times import Entry, Quantity, Times, key, number
from vgg16gpu_lab.experiments.s3 import BATCH
from vgg16gpu_lab.lenet.forward import TOLERANCE
from vgg16gpu_lab.lenet.net import CONVOLUTIONS
from vgg16gpu_lab.published import Key, published

SEED: Final = "S3"
FORWARD: Final = "forward"
DIRECT, TILED, CONSTANT = "direct_parallel", "tiled_shared", "constant_weights"
SEQUENTIAL, IM2COL = "sequential_cpu", "parallel_im2col"
VERSIONS: Final = (SEQUENTIAL, IM2COL, DIRECT, TILED, CONSTANT)
OTHERS: Final = {IM2COL: ("im2col-vector",), CONSTANT: ("constant-weights",)}
"""What had the row's name once and is not theirs: a product on the GPU too, constant memory without the tiles."""


def _median(method: str, part: str) -> Quantity:
    """Return the median over the published batches of a method."""
    names = [name for name in published() if name[:2] == (SEED, "lenet") and name[3] == method]
    chosen = tuple(name for name in names if name[4].endswith(f" {part}"))
    return Quantity(chosen, "median", OTHERS.get(method, ()))


def _pairs(first: str, second: str, *parts: str) -> Iterator[Pair]:
    for part in parts:
        yield Pair(part, _median(first, part), _median(second, part))


def _outside() -> Judge:
    """Judge whether less than half of the direct version's pass is convolutions."""
    whole, convolutions = _median(DIRECT, FORWARD), [_median(DIRECT, layer) for layer in CONVOLUTIONS]

    def find(times: Times) -> Finding:
        entries = [quantity.of(times) for quantity in (whole, *convolutions)]
        if lacking := [reason(entry) for entry in entries if not entry.value]:
            return missing(lacking)
        forward, *inside = [entry.value for entry in entries if entry.value]
        share = 1 - sum(inside) / forward
        figure = f"{share:.0%}: {number(forward - sum(inside))} of {number(forward)} ms"
        return decided(figure, None if abs(share - 0.5) <= MARGIN else share > 0.5)

    return Judge((*whole.keys, *(name for part in convolutions for name in part.keys)), find)


def _mostly_convolutions() -> Judge:
    """Judge whether more than half of a pass is convolutions, of the versions that 3.3.1 compares."""
    parts = {method: [_median(method, part) for part in (FORWARD, *CONVOLUTIONS)] for method in (SEQUENTIAL, IM2COL)}

    def find(times: Times) -> Finding:
        shares: dict[str, float] = {}
        lacking: list[str] = []
        for method, quantities in parts.items():
            entries = [quantity.of(times) for quantity in quantities]
            lacking += [reason(entry) for entry in entries if not entry.value][:1]
            values = [entry.value for entry in entries if entry.value]
            if len(values) == len(entries):
                shares[method] = sum(values[1:]) / values[0]
        if not shares:
            return missing(lacking)
        which = tuple(method for method, share in shares.items() if share > 0.5)
        figure = ", ".join(f"{share:.0%} of {method}" for method, share in shares.items())
        figure += f"; missing: {', '.join(dict.fromkeys(lacking))}" if lacking else ""
        verdict = verdict_of("every", len(which), len(lacking), len(parts))
        return Finding(figure, verdict, len(which), len(shares), which)

    return Judge(tuple(name for quantities in parts.values() for each in quantities for name in each.keys), find)


def _all_right() -> Judge:
    """Judge whether every version was checked and right."""

    def find(times: Times) -> Finding:
        entries = _accuracy(times)
        errors = [entry.error for entry in entries.values() if entry.error is not None]
        wrong = [method for method, entry in entries.items() if entry.is_fault]
        unchecked = [method for method in VERSIONS if method not in entries or entries[method].error is None]
        if not errors:
            return missing([times.absent])
        checked = [method for method in VERSIONS if method not in unchecked]
        figure = f"{len(checked)} of {len(VERSIONS)} checked, largest error {max(errors):.1e}"
        which = tuple(method for method in checked if method not in wrong and _error(entries[method]) <= TOLERANCE)
        share = len(which), len(checked), which
        if wrong or not max(errors) <= TOLERANCE:
            return Finding(f"{figure}; wrong: {', '.join(wrong)}", Verdict.DOES_NOT, *share)
        if unchecked:
            return Finding(f"{figure}; missing: {', '.join(unchecked)}", Verdict.CANNOT_TELL, *share)
        return Finding(f"{figure}, {TOLERANCE:g} is allowed", Verdict.HOLDS, *share)

    return Judge((), find)


def _alike() -> Judge:
    """Judge whether every version gives as many right answers as float64."""

    def find(times: Times) -> Finding:
        shares = {method: entry.value for method, entry in _accuracy(times).items() if entry.value is not None}
        unknown = [method for method in ("float64", *VERSIONS) if method not in shares]
        if unknown:
            return missing([times.absent] if not shares else [f"missing: {', '.join(unknown)}"])
        chosen = [shares[method] for method in ("float64", *VERSIONS)]
        figure = f"{min(chosen):.2%} to {max(chosen):.2%} right, float64 {shares['float64']:.2%}"
        which = tuple(method for method in VERSIONS if shares[method] == shares["float64"])
        verdict = verdict_of("every", len(which), 0, len(VERSIONS))
        return Finding(figure, verdict, len(which), len(VERSIONS), which)

    return Judge((), find)


def _error(entry: Entry) -> float:
    return math.inf if entry.error is None else entry.error


def _accuracy(times: Times) -> dict[str, Entry]:
    """Return accuracies by version, without those of a former version of that name."""
    rows = times.rows(SEED, "accuracy").items()
    return {name[3]: entry for name, entry in rows if entry.variant not in OTHERS.get(name[3], ())}


def _larger_batches() -> Judge:
    """Time of an image in the direct version's pass, alone and among 128."""
    names: tuple[Key, Key] = (
        key(SEED, "batch", 1, DIRECT, FORWARD),
        key(SEED, "batch", BATCH, DIRECT, FORWARD),
    )

    def find(times: Times) -> Finding:
        single, many = (times[name] for name in names)
        if not (single.value and many.value):
            return missing([reason(entry) for entry in (single, many) if not entry.value])
        gain = single.value / (many.value / BATCH)
        figure = f"an image takes {number(1e3 * single.value)} us alone, {number(1e3 * many.value / BATCH)} us in 128"
        return decided(f"{figure}: {number(gain)}x", None if abs(gain - 1) <= MARGIN else gain > 1)

    return Judge(names, find)


def _tiles() -> Judge:
    """Judge both convolutions, the slowest of all tiles against the fastest."""

    def find(times: Times) -> Finding:
        rows = times.rows(SEED, "tile", TILED)
        tiles = {name[4].split("=")[-1] for name in rows}
        sums = {tile: _both(rows, tile) for tile in tiles}
        known = {int(tile): value for tile, value in sums.items() if value}
        if len(known) < 2:
            return missing([times.absent])
        best, worst = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        ratio = known[worst] / known[best]
        figure = f"{best} is best: {number(known[best])} ms, {number(known[worst])} with {worst}: {number(ratio)}x"
        if known[best] < LAUNCHES * len(CONVOLUTIONS) * times.floors.get(SEED, 0.0):
            return decided(f"{figure}; too short to count", None)
        return decided(figure, ratio > ABOUT)

    return Judge((), find)


def _both(rows: dict[Key, Entry], tile: str) -> float | None:
    found = [entry.value for name, entry in rows.items() if name[4].endswith(f" tile={tile}")]
    values = [value for value in found if value]
    return sum(values) if len(values) == len(CONVOLUTIONS) else None


CLAIMS: Final = (
    Claim(
        "S3.1",
        "3.3.1",
        "im2col in parallel speeds the pass up",
        "said",
        "medians of a pass: parallel im2col against the sequential version",
        faster(_pairs(IM2COL, SEQUENTIAL, FORWARD)),
    ),
    Claim(
        "S3.2",
        "3.3.2",
        "Direct convolution halves the time",
        "said",
        "a pass of the sequential version takes about twice that of the direct one",
        about(2, _pairs(DIRECT, SEQUENTIAL, FORWARD)),
    ),
    Claim(
        "S3.3",
        "3.3.2",
        "Direct convolution beats im2col in parallel",
        "table",
        "a pass, and each convolution",
        faster(_pairs(DIRECT, IM2COL, FORWARD, *CONVOLUTIONS)),
    ),
    Claim(
        "S3.4",
        "4.1",
        "Tiles in shared memory are a speed-up",
        "said",
        "each convolution: tiled against direct",
        faster(_pairs(TILED, DIRECT, *CONVOLUTIONS)),
    ),
    Claim(
        "S3.5",
        "4.2",
        "Weights in constant memory on top of the tiles are a speed-up",
        "said",
        "each convolution: tiles with constant weights against tiles",
        faster(_pairs(CONSTANT, TILED, *CONVOLUTIONS)),
    ),
    Claim(
        "S3.6",
        "-",
        "Most of the direct version's pass is no convolution",
        "our question",
        "more than half of its pass, by medians over its batches",
        _outside(),
    ),
    Claim(
        "S3.7",
        "2.2, 3.3, 4.1, 4.2, 5.3",
        "All versions compute the same",
        "our question",
        f"scores of the held-out images against float64, {TOLERANCE:g} at most",
        _all_right(),
        theirs=Finding("not done; 4.1 and 4.2: not reached", Verdict.CANNOT_TELL),
    ),
    Claim(
        "S3.8",
        "5.3",
        "A faster version costs no accuracy (to be done, they say)",
        "our question",
        "share of right answers, all versions and float64 equal",
        _alike(),
    ),
    Claim(
        "S3.9",
        "3.2",
        "Larger batches pay (a sweep over batch sizes is announced)",
        "said",
        "the direct version's time of an image in a batch of 1 and of 128",
        _larger_batches(),
    ),
    Claim(
        "S3.10",
        "4.1",
        "The sizes of tile and block make a difference",
        "said",
        f"both convolutions, tiles of 8, 16 and 32: slowest over fastest above {ABOUT:g}",
        _tiles(),
    ),
    Claim(
        "S3.11",
        "3.3.1",
        "im2col in parallel halves the time",
        "said",
        "a pass of the sequential version takes about twice that with im2col in parallel",
        about(2, _pairs(IM2COL, SEQUENTIAL, FORWARD)),
    ),
    Claim(
        "S3.12",
        "2.2, 3.3.1",
        "The convolutions are most of a pass, sequential and with im2col in parallel",
        "said",
        "both convolutions more than half of a pass, either version",
        _mostly_convolutions(),
    ),
    Claim(
        "S3.13",
        "4.1",
        "With tiles a convolution takes as long as without (30 to 40 ms)",
        "said",
        "each convolution: tiled and direct",
        same(_pairs(TILED, DIRECT, *CONVOLUTIONS)),
    ),
    Claim(
        "S3.14",
        "4.1",
        "Tiles make the program faster",
        "said",
        "a pass: tiled against direct",
        faster(_pairs(TILED, DIRECT, FORWARD)),
    ),
    Claim(
        "S3.15",
        "4.2",
        "Constant memory makes the program faster",
        "said",
        "a pass: tiles with constant weights against tiles",
        faster(_pairs(CONSTANT, TILED, FORWARD)),
    ),
)
