"""What S3 claims: five versions of LeNet's convolutions, and what a pass is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vgg16gpu.lab.claims_judge import MARGIN, Claim, Finding, Judge, Pair, Verdict, about, faster, missing, reason
from vgg16gpu.lab.claims_times import Entry, Quantity, Times, key, number
from vgg16gpu.lab.lenet import CONVOLUTIONS
from vgg16gpu.lab.lenet_forward import TOLERANCE
from vgg16gpu.lab.published import Key, published
from vgg16gpu.lab.seeds.s3 import BATCH

SEED: Final = "S3"
FORWARD: Final = "forward"
USUAL_TILE: Final = 16
DIRECT, TILED, CONSTANT = "direct_parallel", "tiled_shared", "constant_weights"
SEQUENTIAL, IM2COL = "sequential_cpu", "parallel_im2col"
VERSIONS: Final = (SEQUENTIAL, IM2COL, DIRECT, TILED, CONSTANT)


def _median(method: str, part: str) -> Quantity:
    """Over the batches that were published of a method."""
    names = [name for name in published() if name[:2] == (SEED, "lenet") and name[3] == method]
    return Quantity(tuple(name for name in names if name[4].endswith(f" {part}")), "median")


def _pairs(first: str, second: str, *parts: str) -> Iterator[Pair]:
    for part in parts:
        yield Pair(part, _median(first, part), _median(second, part))


def _outside() -> Judge:
    """Whether less than half of the direct version's pass is convolutions."""
    whole, convolutions = _median(DIRECT, FORWARD), [_median(DIRECT, layer) for layer in CONVOLUTIONS]

    def find(times: Times) -> Finding:
        entries = [quantity.of(times) for quantity in (whole, *convolutions)]
        if lacking := [reason(entry) for entry in entries if not entry.value]:
            return missing(lacking)
        forward, *inside = [entry.value for entry in entries if entry.value]
        share = 1 - sum(inside) / forward
        figure = f"{share:.0%}: {number(forward - sum(inside))} of {number(forward)} ms"
        if abs(share - 0.5) <= MARGIN:
            return Finding(figure, Verdict.CANNOT_TELL)
        return Finding(figure, Verdict.HOLDS if share > 0.5 else Verdict.DOES_NOT)

    return Judge((*whole.keys, *(name for part in convolutions for name in part.keys)), find)


def _all_right() -> Judge:
    """Whether every version was checked and right."""

    def find(times: Times) -> Finding:
        entries = _accuracy(times)
        errors = [entry.error for entry in entries.values() if entry.error is not None]
        wrong = [method for method, entry in entries.items() if entry.is_fault]
        unchecked = [method for method in VERSIONS if method not in entries or entries[method].error is None]
        if not errors:
            return missing([times.absent])
        figure = f"{len(VERSIONS) - len(unchecked)} of {len(VERSIONS)} checked, largest error {max(errors):.1e}"
        if wrong or not max(errors) <= TOLERANCE:
            return Finding(f"{figure}; wrong: {', '.join(wrong)}", Verdict.DOES_NOT)
        if unchecked:
            return Finding(f"{figure}; missing: {', '.join(unchecked)}", Verdict.CANNOT_TELL)
        return Finding(f"{figure}, {TOLERANCE:g} is allowed", Verdict.HOLDS)

    return Judge((), find)


def _alike() -> Judge:
    """Whether every version gives as many right answers as float64."""

    def find(times: Times) -> Finding:
        shares = {method: entry.value for method, entry in _accuracy(times).items() if entry.value is not None}
        unknown = [method for method in ("float64", *VERSIONS) if method not in shares]
        if unknown:
            return missing([times.absent] if not shares else [f"missing: {', '.join(unknown)}"])
        chosen = [shares[method] for method in ("float64", *VERSIONS)]
        figure = f"{min(chosen):.2%} to {max(chosen):.2%} right, float64 {shares['float64']:.2%}"
        return Finding(figure, Verdict.HOLDS if min(chosen) == max(chosen) else Verdict.DOES_NOT)

    return Judge((), find)


def _accuracy(times: Times) -> dict[str, Entry]:
    return {name[3]: entry for name, entry in times.rows(SEED, "accuracy").items()}


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
        if abs(gain - 1) <= MARGIN:
            return Finding(f"{figure}: {number(gain)}x", Verdict.CANNOT_TELL)
        return Finding(f"{figure}: {number(gain)}x", Verdict.HOLDS if gain > 1 else Verdict.DOES_NOT)

    return Judge(names, find)


def _tuning() -> Judge:
    """Both convolutions with the best tile against the usual one."""

    def find(times: Times) -> Finding:
        rows = times.rows(SEED, "tile", TILED)
        tiles = {name[4].split("=")[-1] for name in rows}
        sums = {tile: _both(rows, tile) for tile in tiles}
        known = {int(tile): value for tile, value in sums.items() if value}
        usual = known.get(USUAL_TILE)
        if not usual or len(known) < 2:
            return missing([times.absent])
        best = min(known, key=lambda tile: known[tile])
        gain = usual / known[best]
        figure = f"{best} is best: {number(known[best])} ms, {number(usual)} with {USUAL_TILE}: {number(gain)}x"
        return Finding(figure, Verdict.HOLDS if gain > 1 + MARGIN else Verdict.DOES_NOT)

    return Judge((), find)


def _both(rows: dict[Key, Entry], tile: str) -> float | None:
    found = [entry.value for name, entry in rows.items() if name[4].endswith(f" tile={tile}")]
    values = [value for value in found if value]
    return sum(values) if len(values) == len(CONVOLUTIONS) else None


CLAIMS: Final = (
    Claim(
        SEED,
        "im2col in parallel speeds the pass up",
        "table",
        "medians of a pass: parallel im2col against the sequential version",
        faster(_pairs(IM2COL, SEQUENTIAL, FORWARD)),
    ),
    Claim(
        SEED,
        "Direct convolution halves the time",
        "said",
        "a pass of the sequential version takes about twice that of the direct one",
        about(2, _pairs(DIRECT, SEQUENTIAL, FORWARD)),
    ),
    Claim(
        SEED,
        "Direct convolution beats im2col in parallel",
        "table",
        "a pass, and each convolution",
        faster(_pairs(DIRECT, IM2COL, FORWARD, *CONVOLUTIONS)),
    ),
    Claim(
        SEED,
        "Tiles in shared memory are a speed-up",
        "said",
        "each convolution: tiled against direct",
        faster(_pairs(TILED, DIRECT, *CONVOLUTIONS)),
    ),
    Claim(
        SEED,
        "Weights in constant memory are a speed-up",
        "practice",
        "each convolution: constant weights against direct",
        faster(_pairs(CONSTANT, DIRECT, *CONVOLUTIONS)),
    ),
    Claim(
        SEED,
        "218 of the direct version's 286 ms lie outside of the convolutions",
        "table",
        "more than half of its pass is no convolution, by medians over its batches",
        _outside(),
    ),
    Claim(
        SEED,
        "All versions compute the same (their check: 'not done')",
        "practice",
        f"scores of the held-out images against float64, {TOLERANCE:g} at most",
        _all_right(),
    ),
    Claim(
        SEED,
        "A faster version costs no accuracy (not reported)",
        "practice",
        "share of right answers, all versions and float64 equal",
        _alike(),
    ),
    Claim(
        SEED,
        "Batches of 128 pay (the sweep over batches is announced and missing)",
        "practice",
        "the direct version's time of an image in a batch of 1 and of 128",
        _larger_batches(),
    ),
    Claim(
        SEED,
        "Tuning the tile pays (announced and missing)",
        "said",
        f"both convolutions, the best tile against {USUAL_TILE}, more than {MARGIN:.0%}",
        _tuning(),
    ),
)
