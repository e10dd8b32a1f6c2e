"""What S1 claims: im2col against direct, and where cuDNN overtakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vgg16gpu.lab.claims_judge import (
    MARGIN,
    Claim,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    compare,
    faster,
    keys_of,
    missing,
    reason,
    same,
)
from vgg16gpu.lab.claims_times import Quantity, Times, key, number, one
from vgg16gpu.lab.seeds.s1 import LARGER, SIZES

SEED: Final = "S1"
FILLS: Final = (255, 511)  # sizes that give a GPU something to do; larger ones count where they were run


def _time(method: str, size: int) -> Quantity:
    return one(SEED, "methods", size, method)


def _pairs(first: str, second: str, sizes: tuple[int, ...] = SIZES, more: tuple[int, ...] = ()) -> Iterator[Pair]:
    for size in (*sizes, *more):
        yield Pair(str(size), _time(first, size), _time(second, size), optional=size in more)


def _crossover() -> Judge:
    """Not faster at the smallest size, faster from some size on."""
    pairs = tuple(_pairs("cudnn", "direct", SIZES + LARGER))

    def find(times: Times) -> Finding:
        found, lacking = compare(pairs, times)
        if not found:
            return missing(lacking)
        ahead = [each.is_ahead for each in found]
        at = f"{number(found[-1].ratio)}x at {found[-1].label}"
        if ahead[0]:
            verdict = Verdict.DOES_NOT if found[0].label == pairs[0].label else Verdict.CANNOT_TELL
            return Finding(f"faster at {found[0].label} already; {at}", verdict)
        if not ahead[-1]:
            verdict = Verdict.CANNOT_TELL if lacking else Verdict.DOES_NOT
            return Finding(f"not faster up to {found[-1].label}: {at}", verdict)
        first = max(index for index, is_ahead in enumerate(ahead) if not is_ahead) + 1
        return Finding(f"faster from {found[first].label} on ({found[first].text}); {at}", Verdict.HOLDS)

    return Judge(keys_of(pairs), find)


def _largest() -> Judge:
    """About 6 times, at the largest size beyond the published ones that was run."""
    pairs = tuple(_pairs("cudnn", "direct", LARGER))

    def find(times: Times) -> Finding:
        found, lacking = compare(pairs, times)
        if not found:
            return missing(lacking)
        return about(6, [pair for pair in pairs if pair.label == found[-1].label]).find(times)

    return Judge(keys_of(pairs), find)


def _setup() -> Judge:
    """Whether set-up is small beside a run."""
    names = tuple(key(SEED, "methods", size, "cudnn") for size in SIZES)

    def find(times: Times) -> Finding:
        entry = times[names[-1]]
        if not entry.value or entry.setup_ms is None:
            return missing([reason(entry) if entry.value is None else "its set-up is not known"])
        figure = f"set-up {number(entry.setup_ms)} ms, a run {entry.text} ms, at {names[-1][2]}"
        return Finding(figure, Verdict.HOLDS if entry.setup_ms <= MARGIN * entry.value else Verdict.DOES_NOT)

    return Judge(names, find)


CLAIMS: Final = (
    Claim(
        SEED,
        "im2col + GEMM beats direct convolution",
        "said",
        "the product alone, as theirs, against direct, at every published size",
        faster(_pairs("im2col_gemm_only", "direct")),
    ),
    Claim(
        SEED,
        "im2col + GEMM beats direct convolution with its conversion, too",
        "said",
        "conversion and product against direct, at every published size",
        faster(_pairs("im2col_gemm", "direct")),
    ),
    Claim(
        SEED,
        "The conversion may be left out of im2col's time",
        "practice",
        "the product alone takes as long as conversion and product",
        same(_pairs("im2col_gemm_only", "im2col_gemm")),
    ),
    Claim(
        SEED,
        "cuDNN is slower at small sizes",
        "said",
        "direct against cuDNN, set-up left out, at 31 and 63",
        faster(_pairs("direct", "cudnn", SIZES[:2])),
    ),
    Claim(SEED, "cuDNN is about 6 times faster at larger sizes", "said", "at the largest size above 511", _largest()),
    Claim(
        SEED,
        "cuDNN overtakes direct as images grow",
        "said",
        f"not faster at {SIZES[0]}, faster from some size on, up to {LARGER[-1]}",
        _crossover(),
    ),
    Claim(
        SEED,
        "It need not be said what cuDNN's time holds",
        "practice",
        f"handle, descriptors and plan take at most {MARGIN:.0%} of a run",
        _setup(),
    ),
    Claim(
        SEED,
        "Shared memory will make direct faster",
        "said",
        "tile in shared memory against the coalesced direct, from 255 on",
        faster(_pairs("shared_memory", "direct_coalesced", FILLS, LARGER)),
    ),
    Claim(
        SEED,
        "Several outputs per thread will make direct faster",
        "said",
        "four outputs a thread against the coalesced direct, from 255 on",
        faster(_pairs("several_outputs", "direct_coalesced", FILLS, LARGER)),
    ),
    Claim(
        SEED,
        "threadIdx.x may walk rows",
        "practice",
        "their direct takes as long as the coalesced one, from 255 on",
        same(_pairs("direct_coalesced", "direct", FILLS, LARGER)),
    ),
    Claim(
        SEED,
        "Running sums may be stored in the loop over channels",
        "practice",
        "with the stores as long as with sums in registers, from 255 on",
        same(_pairs("direct_coalesced", "direct_planes", FILLS, LARGER)),
    ),
)
