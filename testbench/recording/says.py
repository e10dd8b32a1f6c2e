"""One line about a record, whatever kind it is: enough to see whether it is worth carrying home."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from testbench.pipeline.content import way
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime

Content: TypeAlias = Mapping[str, Any]

KEYS: Final = ("precision", "batch", "method", "regime")  # of a benchmark's record


def says(path: Path) -> str:
    """What a record says; its size where nothing is known of its kind."""
    if path.suffix != ".json":
        return f"{path.stat().st_size >> 10} KiB"
    try:
        content = json.loads(path.read_bytes())
        return next((say(content) for key, say in KINDS.items() if key in content), f"{', '.join(content)}"[:60])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"cannot be read: {type(error).__name__}: {error}"


def _tests(content: Content) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in content["tests"].items())


def _bench(content: Content) -> str:
    """Ours and the fastest peer in the same arithmetic, on the device alone, at the largest batch."""
    parts = []
    for precision in dict.fromkeys(record["precision"] for record in content["records"]):
        found: dict[bool, float] = {}
        largest = max(record["batch"] for record in content["records"] if record["precision"] == precision)
        wanted = (precision, largest, Method.BACK_TO_BACK, Regime.COOL)
        for record in content["records"]:
            if tuple(record[key] for key in KEYS) == wanted and not record["tf32"]:
                ours = record["name"] == NAME
                found[ours] = min(found.get(ours, float("inf")), record["median_s"])
        times = " / ".join(f"{1e3 * found[ours]:.4g}" for ours in (True, False) if ours in found)
        parts.append(f"{precision} x{largest} {times} ms")
    return ", ".join(parts + [f"{len(content['failures'])} failures"] * bool(content["failures"]))


def _devices(content: Content) -> str:
    """What all devices give, by what one gives."""
    most = len(content["devices"])
    runs = [run for run in content["streams"] if run["devices"] == most]
    parts = [f"{run['precision']} x{most} {run['images_per_s']:,.0f}/s, {run['times_one']:.3f} of one" for run in runs]
    return "; ".join(parts + [f"{len(failures)} failures" for failures in [content["failures"]] if failures])


def _pipeline(content: Content) -> str:
    """Our rate and what it is of the smallest ceiling, then the others' rates."""
    shares = {way(verdict): verdict["share"] for verdict in content["verdicts"]}
    parts = []
    for run in content["runs"]:
        share = shares[way(run)]
        of = "" if share is None else f", {share:.0%} of the ceiling"
        parts.append(f"{way(run)} x{run['batch']} {run['rows_per_s'] or 0:,.0f} pictures/s{of}")
    parts += [f"{peer['name']} {peer['pictures_per_s']:,.0f}" for peer in content["peers"]]
    return "; ".join(parts + [f"{len(failures)} failures" for failures in [content.get("failures")] if failures])


def _ratios(content: Content) -> str:
    verdicts = Counter(figure["verdict"] for figure in content["figures"])
    return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


def _ladder(content: Content) -> str:
    timed = [rung for rung in content["rungs"] if rung["times"]]
    ends = [f"{rung['letter']} {1e3 * rung['times']['median_s']:.4g} ms" for rung in timed[:: max(1, len(timed) - 1)]]
    return f"{len(timed)} of {len(content['rungs'])} rungs, {' to '.join(ends)}"


def _experiment(content: Content) -> str:
    statuses = Counter(each["status"] for each in content["rows"])
    return ", ".join(f"{number} {status}" for status, number in statuses.items())


def _claims(content: Content) -> str:
    sides = (
        (side, ", ".join(f"{number} {verdict}" for verdict, number in found.items()))
        for side, found in content["counts"].items()
    )
    return "; ".join(f"{side} {found}" for side, found in sides)


def _verdict(content: Content) -> str:
    return "passed" if content["passed"] else f"FAILED: {'; '.join(map(str, content.get('failures', [])))[:80]}"


def _first_command(content: Content) -> str:
    seconds = {name: value for name, value in content.items() if name.startswith("seconds_") and value}
    words = {name: name.removeprefix("seconds_").removeprefix("of_").replace("_", " ") for name in seconds}
    return ", ".join(f"{words[name]} {value} s" for name, value in seconds.items())


def _host(content: Content) -> str:
    exceeded = [f"{record['precision']}: {each}" for record in content["records"] for each in record["exceeded"]]
    return "; ".join(exceeded) or f"{len(content['records'])} precisions within all bounds"


def _kernels(content: Content) -> str:
    return f"{len(content['kernels'])} kernels"


def _decode(content: Content) -> str:
    """The best of the runs of each decoder, from the first row to the last."""
    rates = {
        decode: max(told["images_per_s_first_row_to_last"] for told in content["infer"][decode])
        for decode in ("gpu", "cpu")
    }
    found = ", ".join(f"{decode} {rate:,.0f} images/s" for decode, rate in rates.items())
    return found + f", {len(content['failures'])} parts failed" * bool(content["failures"])


def _server(content: Content) -> str:
    """What it answers at most, of each form."""
    label = ": answers/s"
    rates = {name.removesuffix(label): rate for name, rate in content["ratios"].items() if name.endswith(label)}
    return "; ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())


def _distances(content: Content) -> str:
    """Medians of distances from float64."""
    return "; ".join(
        ", ".join([precision, *(f"{name} {median(found):.3g}" for name, found in by_name.items())])
        for precision, by_name in content["distances"].items()
    )


def _public_api(content: Content) -> str:
    """The fastest way of each precision at its largest batch."""
    calls = content["calls"]
    parts = []
    for precision in dict.fromkeys(call["precision"] for call in calls):
        own = [call for call in calls if call["precision"] == precision and "median_ms" in call]
        largest = max((call["batch"] for call in own), default=0)
        times = [call["median_ms"] for call in own if call["batch"] == largest]
        parts += [f"{precision} x{largest} {min(times):.4g} ms"] if times else []
    wrong = sum(not call.get("has_same_bits") for call in calls)
    return ", ".join(parts + [f"{wrong} failures"] * bool(wrong))


def _lpips(content: Content) -> str:
    """The fastest way of each arithmetic with the most pictures."""
    timed = [step for step in content["lpips"] if "median_ms" in step]
    most = max((step["count"] for step in timed), default=0)
    fastest: dict[str, float] = {}
    for step in timed:
        if step["count"] == most:
            fastest[step["by"]] = min(fastest.get(step["by"], float("inf")), step["median_ms"])
    parts = [f"{name} {ms:.4g} ms" for name, ms in fastest.items()]
    wrong = sum("error" in step or step.get("is_far", False) for step in content["lpips"])
    return f"x{most} " + ", ".join(parts + [f"{wrong} failures"] * bool(wrong))


def _digits(content: Content) -> str:
    """Return how far each way's gradients are from float64."""
    ways = [f"{name} {way['gradient']:.1e}" for name, way in content["digits"].items()]
    return ", ".join(ways + [f"{len(content['faults'])} failures"] * bool(content["faults"]))


# By a key that only this kind has among those below it.
KINDS: Final[Mapping[str, Callable[[Content], str]]] = {
    "seconds_of_pycuda": _first_command,
    "calls": _public_api,
    "lpips": _lpips,
    "digits": _digits,
    "streams": _devices,
    "ray_by_pool": lambda content: f"{content['devices']} devices: Ray {content['ray_by_pool']:.1%} of the pool's rate",
    "calibrate_s": lambda content: f"{content['images']} images: {median(content['calibrate_s']):.2f} s",
    "front_ends": _server,
    "distances": _distances,
    "capacity": lambda content: "; ".join(content["broken"])[:120] or "all promises hold",
    "pipeline": _pipeline,
    "tests": _tests,
    "figures": _ratios,
    "infer": _decode,
    "rungs": _ladder,
    "passed": _verdict,
    "counts": _claims,
    "batches": _bench,
    "records": _host,
    "rows": _experiment,
    "kernels": _kernels,
}
