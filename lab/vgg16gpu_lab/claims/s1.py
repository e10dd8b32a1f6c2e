"""What S1 claims: im2col against direct, and where cuDNN overtakes.

Its sizes are 31 to 511, all 2^n-1. Powers of two, where rows lie apart by what caches are made of, are told beside.
Its stride is not stated: strides 2 and 3 count beside 1 where they were run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from vgg16gpu_lab.claims.judge import (
    LAUNCHES,
    MARGIN,
    Claim,
    Compared,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    beside,
    compare,
    decided,
    faster,
    keys_of,
    missing,
    reason,
    same,
    verdict_of,
)
from vgg16gpu_lab.claims.times import Entry, Quantity, Times, key, number, one, published_times
from vgg16gpu_lab.experiments.s1 import LARGER, NEAR, SIZES

SEED: Final = "S1"
FILLS: Final = (255, 511)  # sizes that give a GPU something to do; larger ones count where they were run
ROWS: Final = ("direct-rows",)  # half of their kernel, which the row "direct" was once
WHOLE: Final = ("direct-published",)
STRIDES: Final = (1, 2, 3)
FIXED: Final = 2  # a fixed cost at 511 is at most so many times that at 31


def _time(method: str, size: int, stride: int = 1) -> Quantity:
    parameter = "" if stride == 1 else f"stride={stride}"
    if method == "direct_rows":  # has a row of its own now
        names = [key(SEED, "methods", size, name, parameter) for name in (method, "direct")]
        return Quantity(tuple(names), other_than=WHOLE)
    return one(SEED, "methods", size, method, parameter, other_than=ROWS if method == "direct" else ())


def _pairs(
    first: str,
    second: str,
    sizes: tuple[int, ...] = SIZES,
    more: tuple[int, ...] = (),
    strides: tuple[int, ...] = STRIDES,
) -> Iterator[Pair]:
    """Yield a pair at every size; `more` sizes, and strides beside 1, where they were run."""
    for stride, size in product(strides, (*sizes, *more)):
        label = str(size) if stride == 1 else f"{size} stride={stride}"
        yield Pair(label, _time(first, size, stride), _time(second, size, stride), size in more or stride != 1)


def _at_powers(judge: Judge, other: Judge) -> Judge:
    """Judge by sizes such as theirs, and tell the figure at powers of two."""
    return beside(judge, other, "at powers of two")


def _slower() -> Iterator[Pair]:
    """Yield both of their methods against cuDNN."""
    for method in ("direct", "im2col_gemm_only"):
        for pair in _pairs(method, "cudnn"):
            yield replace(pair, label=f"{method} {pair.label}")


def _overtakes(method: str, sizes: tuple[int, ...]) -> Judge:
    """Judge every stride that was run; a stride is a case."""
    judges = {f"stride {stride}": _crossover(method, sizes, stride) for stride in STRIDES}

    def find(times: Times) -> Finding:
        run = {name: judge for name, judge in judges.items() if any(key in times.entries for key in judge.keys)}
        found = {name: judge.find(times) for name, judge in (run or dict(list(judges.items())[:1])).items()}
        if len(found) == 1:
            return next(iter(found.values()))
        verdicts = [each.verdict for each in found.values()]
        which = tuple(name for name, each in found.items() if each.verdict is Verdict.HOLDS)
        unsure = verdicts.count(Verdict.CANNOT_TELL)
        figure = "; ".join(f"{name}: {each.figure}" for name, each in found.items())
        return Finding(figure, verdict_of("every", len(which), unsure, len(found)), len(which), len(found), which)

    return Judge(tuple(name for judge in judges.values() for name in judge.keys), find)


def _crossover(method: str, sizes: tuple[int, ...], stride: int) -> Judge:
    """Judge that cuDNN is not faster at the smallest size, faster from some size on."""
    chosen = _pairs("cudnn", method, sizes, strides=(stride,))
    pairs = tuple(replace(pair, label=pair.label.split()[0], optional=False) for pair in chosen)

    def find(times: Times) -> Finding:
        compared, lacking = compare(pairs, times)
        found = [each for each in compared if not each.is_short]
        if not found:
            return missing(lacking or [f"{len(compared)} of {len(pairs)} too short to count"])
        ahead = [each.is_ahead for each in found]
        at = f"{number(found[-1].ratio)}x at {found[-1].label}"
        if ahead[0]:
            is_first = found[0].label == pairs[0].label
            return decided(f"faster at {found[0].label} already; {at}", False if is_first else None)
        if not ahead[-1]:
            return decided(f"not faster up to {found[-1].label}: {at}", None if lacking else False)
        first = max(index for index, is_ahead in enumerate(ahead) if not is_ahead) + 1
        return decided(f"faster from {found[first].label} on ({found[first].text}); {at}", does=True)

    return Judge(keys_of(pairs), find)


def _setup() -> Judge:
    """Judge whether set-up is small beside a run."""
    names = tuple(key(SEED, "methods", size, "cudnn") for size in SIZES)

    def find(times: Times) -> Finding:
        entry = times[names[-1]]
        if not entry.value or entry.setup_ms is None:
            return missing([reason(entry) if entry.value is None else "its set-up is not known"])
        figure = f"set-up {number(entry.setup_ms)} ms, a run {entry.text} ms, at {names[-1][2]}"
        return decided(figure, entry.setup_ms <= MARGIN * entry.value)

    return Judge(names, find)


def _one_of_three() -> Finding:
    """Judge by their table which sizes would turn if the time were that of their loop of three calls."""
    found, _ = compare(tuple(_pairs("cudnn", "direct")), published_times())
    turned = [each for each in found if each.ratio < 1 < 3 * each.ratio]
    call, direct = (turned[-1].first.value or 0.0) / 3, turned[-1].second
    figure = f"if it covers all three calls, cuDNN is faster at {len(turned)} of {len(found)} sizes"
    text = f"{figure} (511: {number(call)} against {direct.text} ms); it is not said"
    return Finding(text, Verdict.DOES_NOT, cases=len(found))


def _fixed_cost() -> Judge:
    """Judge how much longer cuDNN takes than direct, at 511 and at 31."""
    pairs = tuple(pair for pair in _pairs("direct", "cudnn") if pair.label in (str(SIZES[0]), str(SIZES[-1])))

    def find(times: Times) -> Finding:
        found, lacking = compare(pairs, times)
        if lacking:
            return missing(lacking)
        small, large = ((each.second.value or 0.0) - (each.first.value or 0.0) for each in found)
        figure = f"{number(small)} ms at {found[0].label}, {number(large)} ms at {found[1].label}"
        if min(small, large) <= LAUNCHES * times.floors.get(SEED, 0.0):
            return decided(f"{figure}: no cost, or too short to count", None)
        return decided(f"{figure}: {number(large / small)}x", large <= FIXED * small)

    return Judge(keys_of(pairs), find)


def _runs_out() -> Judge:
    """Judge whether an output of the coalesced kernel takes longer in some larger image than at 1023."""
    names = [_time("direct_coalesced", size) for size in NEAR]
    pairs = tuple(Pair(str(size), names[0], name) for size, name in zip(NEAR[1:], names[1:], strict=True))

    def find(times: Times) -> Finding:
        found, lacking = compare(pairs, times)
        if lacking:
            return missing(lacking)
        outputs = [_for_an_output(each) for each in found]
        slower = tuple(each.label for each in outputs if each.is_ahead)
        worst = max(outputs, key=lambda each: each.ratio)
        figure = f"{worst.text}; {number(NEAR[-1] ** 2 / 1e6)} million threads"
        verdict = Verdict.HOLDS if slower else Verdict.DOES_NOT
        return Finding(figure, verdict, len(slower), len(outputs), slower)

    return Judge(keys_of(pairs), find)


def _for_an_output(pair: Compared) -> Compared:
    """Return nanoseconds for an output at 1023 and at a larger size."""
    first = 1e6 * (pair.first.value or 0.0) / NEAR[0] ** 2
    second = 1e6 * (pair.second.value or 0.0) / int(pair.label) ** 2
    text = f"{NEAR[0]} and {pair.label}"
    return Compared(text, Entry(first), Entry(second), second / first, unit="ns an output")


CLAIMS: Final = (
    Claim(
        "S1.1",
        "3.1",
        "im2col + GEMM beats direct convolution",
        "said",
        "the product alone, as theirs, against direct, at every published size, every stride; larger sizes are told",
        beside(
            faster(_pairs("im2col_gemm_only", "direct")),
            faster(_pairs("im2col_gemm_only", "direct", (), NEAR)),
            f"at {NEAR[0]} to {NEAR[-1]}",
        ),
    ),
    Claim(
        "S1.2",
        "-",
        "im2col + GEMM with its conversion beats direct convolution",
        "our question",
        "conversion and product against direct, at the published sizes, larger ones of their kind where run",
        faster(_pairs("im2col_gemm", "direct", SIZES, NEAR)),
    ),
    Claim(
        "S1.3",
        "3.1",
        "The conversion may be left out of im2col's time",
        "practice",
        "the product alone takes as long as conversion and product, at every published size",
        same(_pairs("im2col_gemm_only", "im2col_gemm")),
    ),
    Claim(
        "S1.4",
        "3.1",
        "At the published sizes cuDNN is slower than direct and im2col",
        "said",
        "direct and im2col's product against cuDNN, set-up left out, every size",
        faster(_slower()),
    ),
    Claim(
        "S1.5",
        "3.1",
        "At some larger size cuDNN is about 6 times as fast as direct",
        "said",
        f"at {', '.join(map(str, NEAR))}, one is enough",
        _at_powers(about(6, _pairs("cudnn", "direct", NEAR), "some"), about(6, _pairs("cudnn", "direct", LARGER))),
    ),
    Claim(
        "S1.6",
        "3.1",
        "cuDNN overtakes direct as images grow",
        "said",
        f"not faster at {SIZES[0]}, faster from some size on, up to {NEAR[-1]}; every stride",
        _at_powers(_overtakes("direct", SIZES + NEAR), _overtakes("direct", LARGER)),
    ),
    Claim(
        "S1.7",
        "2.3, 3.1",
        "It need not be said what cuDNN's time holds",
        "practice",
        f"handle, descriptors and plan take at most {MARGIN:.0%} of a run",
        _setup(),
    ),
    Claim(
        "S1.8",
        "3.2",
        "Shared memory will make direct faster",
        "said",
        "tile in shared memory against the coalesced direct, from 255 on",
        faster(_pairs("shared_memory", "direct_coalesced", FILLS, NEAR + LARGER)),
    ),
    Claim(
        "S1.9",
        "3.2",
        "Several outputs per thread make direct faster",
        "our question",
        "four outputs a thread against the coalesced direct, from 255 on; theirs asks for another share of the work",
        faster(_pairs("several_outputs", "direct_coalesced", FILLS, NEAR + LARGER)),
    ),
    Claim(
        "S1.10",
        "2.1.2",
        "threadIdx.x may walk rows",
        "practice",
        "as long as with threadIdx.x along a row, all else equal, from 255 on, at sizes such as theirs",
        _at_powers(
            same(_pairs("direct_coalesced", "direct_rows", FILLS, NEAR)),
            same(_pairs("direct_coalesced", "direct_rows", LARGER)),
        ),
    ),
    Claim(
        "S1.11",
        "2.1.2",
        "Running sums may be stored in the loop over channels",
        "practice",
        "with the stores as long as with sums in registers, from 255 on",
        same(_pairs("direct_coalesced", "direct_planes", FILLS, NEAR + LARGER)),
    ),
    Claim(
        "S1.12",
        "2.3.1",
        "It need not be said whether a time covers one call or three",
        "practice",
        "their loop of three calls takes as long as one, every published size",
        same(_pairs("cudnn", "cudnn_three")),
        theirs=_one_of_three(),
    ),
    Claim(
        "S1.13",
        "-",
        "cuDNN overtakes a coalesced direct kernel as images grow",
        "our question",
        f"not faster at {SIZES[0]}, faster from some size on, up to {NEAR[-1]}; every stride",
        _at_powers(_overtakes("direct_coalesced", SIZES + NEAR), _overtakes("direct_coalesced", LARGER)),
    ),
    Claim(
        "S1.14",
        "3.1",
        "What cuDNN loses at small sizes is a fixed cost",
        "said",
        f"cuDNN's time less direct's: at {SIZES[-1]} at most {FIXED} times that at {SIZES[0]}",
        _fixed_cost(),
    ),
    Claim(
        "S1.15",
        "3.2",
        "With one thread an output a GPU may run out of threads as images grow",
        "said",
        f"an output of the coalesced direct takes over {MARGIN:.0%} longer at some larger size than at {NEAR[0]}",
        _runs_out(),
    ),
)
