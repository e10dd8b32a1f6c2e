"""What S5 claims: the whole VGG16 in two versions, onnxruntime, and why the two are slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from statistics import median
from typing import Final

from vgg16gpu_lab.claims.judge import (
    ABOUT,
    SAME,
    Claim,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    compare,
    decided,
    faster,
    keys_of,
    missing,
    reason,
    share,
)
from vgg16gpu_lab.claims.times import Entry, Quantity, Times, key, number, one
from vgg16gpu_lab.experiments.s5 import TABLE, VERSIONS
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.network.host import TOLERANCE

SEED: Final = "S5"
LADDER: Final = "ladder"  # the table of rungs, their letters as methods
ONNXRUNTIME: Final = "onnxruntime"
SIZE: Final = 244
ODD_SIZES: Final = (244, 122, 61, 30, 15, 7)
LAYERS: Final = {"conv1_1": (3, 64, 244)} | {
    f"conv5_{index}": (512, 512, 15) for index in (1, 2, 3)
}  # channels, outputs, image size: of those that are compared
FULL: Final = tuple(name for name in LAYERS if name != "conv1_1")

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
_PLACES: Final = ("host", "device")  # of padding, bias and ReLU
_SUMS: Final = ("serial", "tree")  # of the products of an output
_GRIDS: Final = ("1d", "2d")


def _network(method: str, iterations: int) -> Quantity:
    return one(SEED, TABLE, SIZE, method, f"iterations={iterations}")


def rung(name: str) -> Quantity:
    """Return a rung's time by S5's own table, most iterations first, or by the ladder."""
    method = _RUNGS[name]
    table = [key(SEED, TABLE, SIZE, method, f"iterations={n}") for n in reversed(_ITERATIONS[method])]
    return Quantity((*table, key(SEED, LADDER, "", name)))


def _rungs(first: str, second: str) -> list[Pair]:
    return [Pair("", rung(first), rung(second))]


def _removed(cause: tuple[str, str]) -> Iterator[Pair]:
    """Yield pairs without and with a cause, the two other causes there or gone: four pairs."""
    axes = (_PLACES, _SUMS, _GRIDS)
    index = axes.index(cause)
    others = [axis for axis in axes if axis != cause]
    for rest in product(*others):
        first, second = (" ".join((*rest[:index], way, *rest[index:])) for way in reversed(cause))
        yield Pair(" ".join(rest), _cause(first), _cause(second))


def _cause(method: str) -> Quantity:
    return one(SEED, "causes", SIZE, method)


def _iterations() -> Judge:
    """Judge one input, run as often as its row says; a row with fewer runs does not count."""
    counts = {"version_a": (1, 5), "version_b": (1, 5, 500)}
    pairs = [
        Pair(f"{method}, {few} and {many}", _network(method, few), _network(method, many))
        for method, found in counts.items()
        for few, many in pairwise(found)
    ]

    def find(times: Times) -> Finding:
        made = [pair for pair in pairs if not _unmade(pair, times)]
        found, lacking = compare(made, times)
        lacking += [_unmade(pair, times) for pair in pairs if pair not in made]
        return share(found, SAME, "every", lacking)

    return Judge(keys_of(pairs), find)


def _unmade(pair: Pair, times: Times) -> str:
    """Return why a pair says nothing about iterations; "" if it does."""
    for quantity in (pair.first, pair.second):
        asked, entry = int(quantity.keys[0][4].split("=")[1]), times[quantity.keys[0]]
        if entry.status == Status.ESTIMATED.value:
            return "no run was made, their time is an estimate"
        if entry.samples is not None and entry.samples < asked:
            return f"{entry.samples} runs of {asked} were made"
    return ""


def _all_right() -> Judge:
    """Judge that every rung that was run, in S5's table or by the ladder, has the scores of onnxruntime."""

    def find(times: Times) -> Finding:
        rungs = _judged_rungs(times)
        wrong = [f"{letter}: {reason(each)}" for letter, entries in rungs.items() for each in entries if each.is_fault]
        if wrong:
            return Finding("; ".join(wrong), Verdict.DOES_NOT)
        errors = {letter: _largest(entries) for letter, entries in rungs.items()}
        known = {letter: error for letter, error in errors.items() if error is not None}
        if not {"A", "B"} <= set(known):
            return missing([times.absent])
        exact = {letter: error for letter, error in known.items() if rungs[letter][0].precision == "fp32"}
        which = tuple(letter for letter, error in exact.items() if error <= TOLERANCE)
        figure = f"fp32: {len(which)} of {len(exact)} within {TOLERANCE:g} (largest {max(exact.values()):.1e})"
        figure += "".join(f"; {text}: not counted" for text in _others(rungs, known))
        verdict = Verdict.HOLDS if len(which) == len(exact) else Verdict.DOES_NOT
        return Finding(figure, verdict, len(which), len(exact), which)

    return Judge((), find)


def _judged_rungs(times: Times) -> dict[str, list[Entry]]:
    """Return the rungs by letter, or by name where a version is not a rung."""
    rungs: dict[str, list[Entry]] = {}
    for table in (TABLE, LADDER):
        for name, entry in times.rows(SEED, table).items():
            rungs.setdefault(_LETTERS.get(name[3], name[3]), []).append(entry)
    rungs.pop(ONNXRUNTIME, None)
    return rungs


def _others(rungs: dict[str, list[Entry]], errors: dict[str, float]) -> Iterator[str]:
    """Yield for each precision with a bound of its own how many rungs are within it."""
    for precision in dict.fromkeys(entries[0].precision for entries in rungs.values()):
        found = {letter: rungs[letter][0] for letter in errors if rungs[letter][0].precision == precision}
        bounds = [entry.tolerance for entry in found.values() if entry.tolerance is not None]
        if precision != "fp32" and bounds:
            inside = sum(errors[letter] <= max(bounds) for letter in found)
            yield f"{precision}: {inside} of {len(found)} within {max(bounds):g}"


def _largest(entries: Sequence[Entry]) -> float | None:
    return max((entry.error for entry in entries if entry.error is not None), default=None)


def _odd_sizes() -> Finding:
    """Check floor division, pool by pool."""
    sizes = [ODD_SIZES[0]]
    for _ in ODD_SIZES[1:]:
        sizes.append((sizes[-1] - 2) // 2 + 1)
    return decided(" -> ".join(map(str, sizes)), tuple(sizes) == ODD_SIZES)


def _pools() -> Judge:
    """Judge each of the five pools: its output's size, and that it is numpy's without last row and column."""
    names = [key(SEED, "pool", size, "pool_columns", "after ReLU") for size in ODD_SIZES[:-1]]

    def find(times: Times) -> Finding:
        entries = [times[name] for name in names]
        if lacking := [reason(entry) for entry in entries if entry.value is None]:
            return missing(lacking)
        right = [entry.value == size and entry.error == 0 for entry, size in zip(entries, ODD_SIZES[1:], strict=True)]
        which = tuple(name[2] for name, is_right in zip(names, right, strict=True) if is_right)
        figure = " -> ".join((names[0][2], *(number(entry.value) for entry in entries)))
        text = f"{figure}, {len(which)} of {len(names)} equal numpy's"
        verdict = Verdict.HOLDS if all(right) else Verdict.DOES_NOT
        return Finding(text, verdict, len(which), len(names), which)

    return Judge(tuple(names), find)


def _zero_start() -> Judge:
    """Judge that maxima from 0 and from minus infinity are the same after a ReLU, and not elsewhere."""
    names = [key(SEED, "pool", SIZE, "start_at_zero", maps) for maps in ("after ReLU", "any sign")]

    def find(times: Times) -> Finding:
        after, elsewhere = (times[name] for name in names)
        if lacking := [reason(entry) for entry in (after, elsewhere) if entry.error is None]:
            return missing(lacking)
        is_needed = elsewhere.error != 0
        figure = f"error {after.error:.1e} after a ReLU, {elsewhere.error:.1e} on maps of any sign"
        return decided(figure, after.error == 0 if is_needed else None)

    return Judge(tuple(names), find)


def _few_channels() -> Judge:
    """Time for a product of version B's first convolution against that of those with 512 input channels."""
    names = {layer: key(SEED, "layers", SIZE, "version_b", layer) for layer in LAYERS}

    def find(times: Times) -> Finding:
        entries = {layer: times[name] for layer, name in names.items()}
        if lacking := [reason(entry) for entry in entries.values() if not entry.value]:
            return missing(lacking)
        nanoseconds = {layer: _for_a_product(layer, entry) for layer, entry in entries.items()}
        first, full = nanoseconds["conv1_1"], median(nanoseconds[layer] for layer in FULL)
        figure = f"{number(first)} ns a product of conv1_1, {number(full)} of those with 512 channels"
        return decided(f"{figure}: {number(first / full)}x", first / full > ABOUT)

    return Judge(tuple(names.values()), find)


def _for_a_product(layer: str, entry: Entry) -> float:
    channels, outputs, size = LAYERS[layer]
    return 1e6 * (entry.value or 0.0) / (channels * outputs * 9 * size**2)


CLAIMS: Final = (
    Claim(
        "S5.1",
        "4.2",
        "Version A on the GPU is faster than the CPU",
        "said",
        "a run of A against the CPU's",
        faster([Pair("", rung("A"), _network("cpu", 1))]),
    ),
    Claim(
        "S5.2",
        "3.1.2, 4.2",
        "Adding up in shared memory (B) beats adding up on the host (A)",
        "said",
        "a whole pass: rung B against rung A",
        faster(_rungs("B", "A")),
    ),
    Claim(
        "S5.3",
        "4.2",
        "onnxruntime on a CPU is about 5 times as fast as version B",
        "said",
        "a whole pass: onnxruntime on the machine's CPU against rung B",
        about(5, _rungs(ONNXRUNTIME, "B")),
    ),
    Claim(
        "S5.4",
        "4.2",
        "Padding, bias and ReLU on the host may be a cause",
        "said",
        "on the device against on the host, sums and grids either way: four pairs",
        faster(_removed(_PLACES)),
    ),
    Claim(
        "S5.5",
        "4.2",
        "One thread that adds up may be a cause",
        "said",
        "a tree against thread 0, host and grids either way: four pairs",
        faster(_removed(_SUMS)),
    ),
    Claim(
        "S5.6",
        "4.2",
        "A grid of one dimension may be a cause",
        "said",
        "two dimensions against one, host and sums either way: four pairs",
        faster(_removed(_GRIDS)),
    ),
    Claim(
        "S5.7",
        "-",
        "With a thread for each output the GPU beats onnxruntime on a CPU",
        "our question",
        "rung E against onnxruntime",
        faster(_rungs("E", ONNXRUNTIME)),
    ),
    Claim(
        "S5.8",
        "4.1, 4.2",
        "How often a run is repeated makes no difference",
        "table",
        "means over 1, 5 and 500 iterations of one input, B; over 1 and 5, A (500 are not measured, nor by them)",
        _iterations(),
    ),
    Claim(
        "S5.9",
        "4.1",
        "Every output is right",
        "said",
        f"scores of every rung of float32 against onnxruntime's, {TOLERANCE:g} at most",
        _all_right(),
        theirs=Finding("said to be checked, no error is given", Verdict.CANNOT_TELL),
    ),
    Claim(
        "S5.10",
        "3.2",
        "A max-pool drops an odd last row and column (244 becomes 122, 61, 30, 15, 7)",
        "said",
        "the kernel is run, at all five sizes, against numpy's without them; theirs: by arithmetic",
        _pools(),
        theirs=_odd_sizes(),
    ),
    Claim(
        "S5.11",
        "4.2",
        "Version A is nearly 10 times as fast as the CPU",
        "said",
        "a run of the CPU takes about 10 times as long as one of A",
        about(10, [Pair("", rung("A"), _network("cpu", 1))]),
    ),
    Claim(
        "S5.12",
        "4.2",
        "Version B is about 160 times as fast as the CPU",
        "said",
        "a run of the CPU takes about 160 times as long as one of B",
        about(160, [Pair("", rung("B"), _network("cpu", 1))]),
    ),
    Claim(
        "S5.13",
        "3.2",
        "A maximum may begin at 0, as a ReLU comes before",
        "said",
        "the pool from 0 and from minus infinity: the same bits after a ReLU, others on maps of any sign",
        _zero_start(),
    ),
    Claim(
        "S5.14",
        "4.2",
        "Layers with few input channels use the GPU worst",
        "said",
        f"a product of B's first convolution takes over {ABOUT:g} times as long as one of those with 512 channels",
        _few_channels(),
    ),
)
