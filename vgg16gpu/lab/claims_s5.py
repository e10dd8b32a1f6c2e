"""What S5 claims: the whole VGG16 in two versions, the goal that they missed, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from vgg16gpu.lab.claims_judge import Claim, Finding, Judge, Pair, Verdict, faster, missing, reason, same
from vgg16gpu.lab.claims_times import Entry, Quantity, Times, key
from vgg16gpu.lab.seeds.s5 import TABLE, VERSIONS

SEED: Final = "S5"
LADDER: Final = "ladder"  # the table of rungs, their letters as methods
ONNXRUNTIME: Final = "onnxruntime"
ODD_SIZES: Final = (244, 122, 61, 30, 15, 7)

_ITERATIONS: Final = {version.method: version.iterations for version in VERSIONS}
_RUNGS: Final = {
    "A": "version_a",
    "B": "version_b",
    "C": "no_host",
    "D": "tree",
    "E": "pixels",
    ONNXRUNTIME: "onnxruntime_cpu",
}
_LETTERS: Final = {method: letter for letter, method in _RUNGS.items()}


def _network(method: str, iterations: int) -> Quantity:
    return Quantity((key(SEED, TABLE, 244, method, f"iterations={iterations}"),))


def rung(name: str) -> Quantity:
    """A rung's time by S5's own table, most iterations first, or by the ladder."""
    method = _RUNGS[name]
    table = [key(SEED, TABLE, 244, method, f"iterations={n}") for n in reversed(_ITERATIONS[method])]
    return Quantity((*table, key(SEED, LADDER, "", name)))


def _pair(first: str, second: str) -> Judge:
    return faster([Pair("", rung(first), rung(second))])


def _iterations() -> Iterator[Pair]:
    for method in ("version_a", "version_b"):
        for few, many in pairwise(_ITERATIONS[method]):
            yield Pair(f"{method}, {few} and {many}", _network(method, few), _network(method, many))


def _all_right() -> Judge:
    """Every rung that was run, in S5's table or by the ladder, has the scores of onnxruntime."""

    def find(times: Times) -> Finding:
        rungs: dict[str, list[Entry]] = {}
        for table in (TABLE, LADDER):
            for name, entry in times.rows(SEED, table).items():
                rungs.setdefault(_LETTERS.get(name[3], name[3]), []).append(entry)
        rungs.pop(ONNXRUNTIME, None)
        wrong = [
            f"{letter}: {reason(entry)}" for letter, entries in rungs.items() for entry in entries if entry.is_fault
        ]
        if wrong:
            return Finding("; ".join(wrong), Verdict.DOES_NOT)
        errors = {letter: _largest(entries) for letter, entries in rungs.items()}
        known = {letter: error for letter, error in errors.items() if error is not None}
        if not {"A", "B"} <= set(known):
            return missing([times.absent])
        figure = f"{', '.join(known)} agree with onnxruntime, A and B to {max(known['A'], known['B']):.1e}"
        return Finding(f"{figure}, all to {max(known.values()):.1e}", Verdict.HOLDS)

    return Judge((), find)


def _largest(entries: Sequence[Entry]) -> float | None:
    return max((entry.error for entry in entries if entry.error is not None), default=None)


def _odd_sizes() -> Finding:
    """Floor division, pool by pool."""
    sizes = [ODD_SIZES[0]]
    for _ in ODD_SIZES[1:]:
        sizes.append((sizes[-1] - 2) // 2 + 1)
    verdict = Verdict.HOLDS if tuple(sizes) == ODD_SIZES else Verdict.DOES_NOT
    return Finding(" -> ".join(map(str, sizes)), verdict)


CLAIMS: Final = (
    Claim(
        SEED,
        "Version A on the GPU is faster than the CPU",
        "table",
        "a run of A against the CPU's",
        faster([Pair("", rung("A"), _network("cpu", 1))]),
    ),
    Claim(
        SEED,
        "Adding up in shared memory (B) beats adding up on the host (A)",
        "table",
        "a whole pass: rung B against rung A",
        _pair("B", "A"),
    ),
    Claim(
        SEED,
        "The goal: the GPU beats onnxruntime on a CPU",
        "said",
        "a whole pass: rung B against onnxruntime on the machine's CPU",
        _pair("B", ONNXRUNTIME),
    ),
    Claim(
        SEED,
        "Padding, bias and ReLU on the host are a cause",
        "said",
        "rung C, which has them on the GPU, against B",
        _pair("C", "B"),
    ),
    Claim(
        SEED,
        "One thread that adds up 512 numbers is a cause",
        "said",
        "rung D, which adds as a tree, against C",
        _pair("D", "C"),
    ),
    Claim(
        SEED,
        "One-dimensional work, no tiles, is a cause",
        "said",
        "rung E, two-dimensional tiles, against D",
        _pair("E", "D"),
    ),
    Claim(
        SEED,
        "With these causes gone the goal is met",
        "said",
        "rung E against onnxruntime",
        _pair("E", ONNXRUNTIME),
    ),
    Claim(
        SEED,
        "How often a run is repeated makes no difference",
        "table",
        "means over 1, 5 and 500 iterations, A and B; ours, but for --full, over fewer runs",
        same(_iterations()),
    ),
    Claim(
        SEED,
        "Every output is right",
        "said",
        "scores of every rung against onnxruntime's",
        _all_right(),
        theirs=Finding("said to be checked, no error is given", Verdict.CANNOT_TELL),
    ),
    Claim(
        SEED,
        "Max-pools make 244 into 122, 61, 30, 15, 7",
        "said",
        "windows of 2x2 that fit, an odd last row and column dropped",
        Judge((), lambda _: _odd_sizes()),
    ),
)
