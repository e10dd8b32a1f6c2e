"""Two checkouts, this one and another, beside each other on one machine: benchmark and start of `infer`, in turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, TypeAlias

from testbench.recording.recipes import Settings, made, vgg16gpu
from testbench.recording.steps import NO_TIME, PYTHON, ROOT, Ended, Recipe, Step
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.records.record import write
from vgg16gpu.errors import Error

OTHER, THIS = "other", "this"
TURNS: Final = (OTHER, THIS, THIS, OTHER)  # what drifts evenly during a round drifts for both alike
BENCH_SECONDS, START_SECONDS = 3.0, 9.0  # of one turn; of the benchmark, for each precision and batch size
STARTS: Final = 8
SAME, SLOWER, FASTER, UNKNOWN = "same", "slower", "faster", "cannot tell"
METHOD: Final = (
    "rounds of four turns, other, this, this, other: in each the benchmark without peers, then starts of infer; a "
    "turn's figure is its median, a round's ratio the sum of this checkout's two figures by that of the other's. "
    "ratio: the median of the rounds, low and high: the least and the greatest; noise: by how much two turns of the "
    "same checkout in one round differ at most. same: every round within the bound; slower, faster: every round beyond "
    "it; else it cannot tell"
)

What: TypeAlias = tuple[str, int, str, str]  # precision, batch, method, regime
Turn: TypeAlias = Mapping[What, float]  # seconds


@dataclass(frozen=True)
class Figure:
    """One figure in every round: seconds of the turns in their order."""

    what: What
    rounds: Sequence[Sequence[float]]

    @property
    def ratios(self) -> list[float]:
        """Of each round, this checkout by the other; above 1 is slower."""
        return [_sum(each, THIS) / _sum(each, OTHER) for each in self.rounds]

    @property
    def noise(self) -> float:
        """The largest part by which two turns of the same checkout in one round differ."""
        pairs = [(each[first], each[second]) for each in self.rounds for first, second in ((0, 3), (1, 2))]
        return max(max(pair) / min(pair) - 1 for pair in pairs)

    def verdict(self, bound: float) -> str:
        """What all rounds agree on; `bound` is a part, 0.01 for 1 %."""
        if all(1 - bound <= ratio <= 1 + bound for ratio in self.ratios):
            return SAME
        if all(ratio > 1 + bound for ratio in self.ratios):
            return SLOWER
        return FASTER if all(ratio < 1 - bound for ratio in self.ratios) else UNKNOWN

    def record(self, bound: float) -> dict[str, Any]:
        """As JSON keeps it."""
        keys = dict(zip(("precision", "batch", "method", "regime"), self.what, strict=True))
        ratios = self.ratios
        numbers = {"ratio": median(ratios), "low": min(ratios), "high": max(ratios), "noise": self.noise}
        return {**keys, **numbers, "verdict": self.verdict(bound), "ratios": ratios, "turns_s": self.rounds}


def _sum(turns: Sequence[float], whose: str) -> float:
    return sum(seconds for name, seconds in zip(TURNS, turns, strict=True) if name == whose)


def compare(
    settings: Settings,
    other: Path,
    rounds: int,
    bound: float,
    batches: str = "1,8,32,128",
    precisions: Sequence[str] | None = None,
) -> Recipe:
    """Both in `rounds` rounds; `bound`: what part of a figure counts as the same, 0.01 for 1 %. precisions: else all.

    What turns leave lies in a folder for these precisions and batches, as turns of an earlier call count.
    """
    named = precisions or settings.precisions
    sizes = "1" if settings.quick else batches
    steps, folder = made(settings, 224), settings.work / f"compare-{'-'.join(named)}-{sizes}"
    record = settings.record("-".join(["compare-CARD", *(precisions or ())]))
    checkouts = {THIS: ROOT, OTHER: other}
    effort = ("--repeats", 3) if settings.quick else ("--seconds", 0.1, "--sustained", 0)
    measured = ("--precision", ",".join(named), "--batch", sizes)
    seconds = BENCH_SECONDS * len(named) * len(sizes.split(","))
    model, device = settings.model(224), ("--device", settings.device)
    for number in range(1, rounds + 1):
        for turn, whose in enumerate(TURNS, start=1):
            name, place = f"{number}-{turn}-{whose}", checkouts[whose]
            bench, start = (folder / f"{kind}-{name}.json" for kind in ("bench", "start"))
            words = vgg16gpu("bench", model, *device, *measured, *effort, "--output", bench)
            steps.append(Step(bench.stem, words, seconds, (bench,), cwd=place))
            given = ("--model", str(model), "--picture", str(settings.picture), *device)
            runs = ("--runs", str(1 if settings.quick else STARTS), "--output", str(start))
            script = (PYTHON, "testbench/recording/starts.py", str(place), *given, *runs)
            steps.append(Step(start.stem, script, START_SECONDS, (start,)))
    return Recipe(steps, lambda ended: _finish(record, folder, ended, rounds, bound))


def _finish(record: Path, folder: Path, ended: Mapping[str, Ended], rounds: int, bound: float) -> Sequence[Path]:
    """The record of the rounds that are whole; none where there is none."""
    names = [[f"{number}-{turn}-{whose}" for turn, whose in enumerate(TURNS, 1)] for number in range(1, rounds + 1)]
    whole = [
        each
        for each in names
        if all(_is_there(folder, ended, f"{kind}-{name}") for name in each for kind in ("bench", "start"))
    ]
    if not whole:
        return ()
    starts = [[_read(folder / f"start-{name}.json")["checkouts"][0] for name in each] for each in whole]
    benches = [[_read(folder / f"bench-{name}.json") for name in each] for each in whole]
    turns = [
        [_turn(bench, start) for bench, start in zip(*each, strict=True)] for each in zip(benches, starts, strict=True)
    ]
    found = [figure.record(bound) for figure in figures(turns)]
    parts = {whose: _parts(starts, whose) for whose in (OTHER, THIS)}
    content = {
        "what": "the medians of this checkout by those of another one, measured in turns on one machine",
        "method": METHOD,
        "checkouts": {whose: _one_commit(starts, whose) for whose in (THIS, OTHER)},
        "bound": bound,
        "rounds": len(whole),
        "model": benches[0][0]["model"],
        "figures": found,
        "start_parts_s": parts,
        "environment": starts[0][1]["environment"],
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    write(record, content)
    print(shown(found))
    print(shown_parts(parts))
    return (record,)


def _is_there(folder: Path, ended: Mapping[str, Ended], name: str) -> bool:
    """Whether a step did its work, now or in an earlier call, since rounds may take longer than a call may."""
    found = ended.get(name)
    return (folder / f"{name}.json").is_file() and (found is None or found.is_well or found.status == NO_TIME)


def _parts(starts: Sequence[Sequence[Mapping[str, Any]]], whose: str) -> dict[str, float]:
    """Of each stage of a checkout's starts, the median of its turns, in seconds; 0 in a turn without it."""
    turns = [start["parts_s"] for each in starts for start, name in zip(each, TURNS, strict=True) if name == whose]
    names = dict.fromkeys(name for turn in turns for name in turn)
    return {name: median(turn.get(name, 0.0) for turn in turns) for name in names}


def figures(rounds: Sequence[Sequence[Turn]]) -> Iterator[Figure]:
    """The figures that all turns have."""
    common = set.intersection(*(set(turn) for each in rounds for turn in each))
    for what in (what for what in rounds[0][0] if what in common):
        yield Figure(what, [[turn[what] for turn in each] for each in rounds])


def shown(found: Iterable[Mapping[str, Any]]) -> str:
    """A table: each figure's ratio, its spread, the noise."""
    lines = [f"{'this by the other':50} {'ratio':>7} {'low':>7} {'high':>7} {'noise':>6}"]
    rows = list(found)
    for each in rows:
        what = f"{each['precision']}, batch {each['batch']}, {each['method']}, {each['regime']}"
        ratios = f"{each['ratio']:7.4f} {each['low']:7.4f} {each['high']:7.4f}"
        lines.append(f"{what:50} {ratios} {100 * each['noise']:5.1f}%  {each['verdict']}")
    lines.append(f"{'mean of all':50} {mean(each['ratio'] for each in rows):7.4f}")
    return "\n".join(lines)


def shown_parts(parts: Mapping[str, Mapping[str, float]]) -> str:
    """A table: what each stage of a start takes, in ms."""
    lines = [f"{'stage of a start, ms':50} {THIS:>7} {OTHER:>7}"]
    for name in dict.fromkeys((*parts[THIS], *parts[OTHER])):
        both = " ".join(f"{1e3 * parts[whose].get(name, 0.0):7.1f}" for whose in (THIS, OTHER))
        lines.append(f"{name:50} {both}")
    return "\n".join(lines)


def _turn(bench: Mapping[str, Any], start: Mapping[str, Any]) -> dict[What, float]:
    found = {
        (record["precision"], record["batch"], record["method"], record["regime"]): float(record["median_s"])
        for record in bench.get("records", ())
        if record["name"] == NAME
    }
    names = {"to the answer": "to_result_s", "to the end": "to_exit_s"}
    return found | {("fp32", 1, f"infer, {name}", "start"): float(start[key]) for name, key in names.items()}


def _one_commit(starts: Sequence[Sequence[Mapping[str, Any]]], whose: str) -> Any:
    """Of a checkout. Raises Error where its turns were not of one."""
    commits = [
        start["environment"]["commit"]
        for each in starts
        for start, name in zip(each, TURNS, strict=True)
        if name == whose
    ]
    if any(commit != commits[0] for commit in commits):
        raise Error(f"the commit of the {whose} checkout changed between its turns; compare again")
    return commits[0]


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
