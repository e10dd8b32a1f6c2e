"""The start of `infer` in two checkouts, this one and another: pairs of fresh processes, one of each, in turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from testbench.recording.recipes import Settings, made
from testbench.recording.steps import PYTHON, ROOT, Ended, Recipe, Step
from vgg16gpu.bench.records.record import write

PAIR_SECONDS: Final = 2.4
STARTS: Final = "starts"
METHOD: Final = (
    "pairs of processes right behind each other, one of each checkout; who begins a pair ends the next. ratio: the "
    "median over all pairs of this checkout's time by the other's; low and high: the 95 % interval of that median, by "
    "drawing pairs anew 10,000 times. slower, faster: all of the interval is; else it cannot tell"
)
_DRAWS, _SEED = 10_000, 16
_TIMES: Final = {"to the answer": "results_s", "to the end": "exits_s"}


def starts(settings: Settings, other: Path, pairs: int) -> Recipe:
    """So many pairs, of one picture through VGG16."""
    found = settings.work / "starts.json"
    words = ("--model", str(settings.model(224)), "--picture", str(settings.picture), "--device", settings.device)
    runs = ("--runs", str(1 if settings.quick else pairs), "--output", str(found))
    script = (PYTHON, "testbench/recording/starts.py", str(ROOT), str(other), *words, *runs)
    steps = [*made(settings, 224), Step(STARTS, script, PAIR_SECONDS * (1 + pairs), (found,))]
    return Recipe(steps, lambda ended: _finish(settings, found, ended))


def compared(this: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each time of a start: this checkout's by the other's, and what can be said of it."""
    return [{"time": name, **_ratio(this[key], other[key])} for name, key in _TIMES.items()]


def _ratio(this: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    ratios = np.array(this) / np.array(other)
    drawn = np.random.default_rng(_SEED).choice(ratios, (_DRAWS, len(ratios)))
    low, high = (float(edge) for edge in np.quantile(np.median(drawn, axis=1), (0.025, 0.975)))
    verdict = "slower" if low > 1 else "faster" if high < 1 else "cannot tell"
    medians = {"this_s": median(this), "other_s": median(other)}
    return {
        "ratio": float(np.median(ratios)),
        "low": low,
        "high": high,
        "verdict": verdict,
        "pairs": len(this),
        **medians,
    }


def _finish(settings: Settings, found: Path, ended: Mapping[str, Ended]) -> Sequence[Path]:
    if STARTS not in ended or not ended[STARTS].is_well:
        return ()
    this, other = json.loads(found.read_bytes())["checkouts"]
    times = compared(this, other)
    content = {
        "what": "the start of infer in this checkout by that in another one, on one machine",
        "method": METHOD,
        "checkouts": {"this": this["environment"]["commit"], "other": other["environment"]["commit"]},
        "times": times,
        "parts_s": {"this": this["parts_s"], "other": other["parts_s"]},
        "samples_s": {
            "this": {key: this[key] for key in _TIMES.values()},
            "other": {k: other[k] for k in _TIMES.values()},
        },
        "environment": this["environment"],
    }
    record = settings.record("starts-CARD")
    record.parent.mkdir(parents=True, exist_ok=True)
    write(record, content)
    print(shown(times, content["parts_s"]))
    return (record,)


def shown(times: Sequence[Mapping[str, Any]], parts: Mapping[str, Mapping[str, float]]) -> str:
    """Two tables: the times and their ratios; what each stage takes, in ms."""
    lines = [
        f"{each['time']:20} {each['ratio']:6.3f}, {each['low']:.3f} to {each['high']:.3f}: {each['verdict']} "
        f"({1e3 * each['this_s']:.0f} and {1e3 * each['other_s']:.0f} ms, {each['pairs']} pairs)"
        for each in times
    ]
    lines.append(f"{'stage, ms':40} {'this':>7} {'other':>7}")
    for name in dict.fromkeys((*parts["this"], *parts["other"])):
        both = " ".join(f"{1e3 * parts[whose].get(name, 0.0):7.1f}" for whose in ("this", "other"))
        lines.append(f"{name:40} {both}")
    return "\n".join(lines)
