"""Whole runs of `infer`: the folder to a CSV, each in a process of its own, so often, after one that does not count."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbench.pipeline.ceilings import Speed
from testbench.pipeline.wanted import TOP, Wanted, Work
from testbench.pipeline.watching import Watched, infer_command, watch
from vgg16gpu.bench.measure.cold_start import with_byte_code

_OUTPUT: Final = "rows.csv"


@dataclass(frozen=True)
class WholeRuns:
    """All repeats in one precision, JPEG decoded by the "cpu" or the "gpu".

    best: the best class of each picture, in order; -1 without one.
    """

    precision: str
    decode: str
    runs: tuple[Watched, ...]
    best: tuple[int, ...]
    failures: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Of the device that was taken: "cuda" or "cpu"."""
        return str(self.runs[0].told["device_choice"]).partition(":")[0]

    @property
    def batch(self) -> int:
        """Images a run of the device."""
        return int(self.runs[0].told["batch"])

    @property
    def median(self) -> Watched:
        """The one whose rate, or else whose time, is in the middle."""
        ordered = sorted(self.runs, key=lambda run: (run.rows.per_s or 0.0, -run.whole_s))
        return ordered[len(ordered) // 2]

    @property
    def speed(self) -> Speed:
        """Medians, and the best of the repeats."""
        rates = [run.rows.per_s for run in self.runs if run.rows.per_s]
        busy = [run.rows.cpu_s_each for run in self.runs if run.rows.cpu_s_each]
        return Speed(
            self.precision,
            self.decode,
            statistics.median(run.whole_s for run in self.runs),
            statistics.median(rates) if rates else None,
            max(rates, default=None),
            min(busy, default=None),
        )

    def fields(self) -> dict[str, Any]:
        """As plain data."""
        shown, speed = self.median, self.speed
        return {
            "precision": self.precision,
            "decode": self.decode,
            "batch": shown.told["batch"],
            "device": shown.told["device"],
            "device_choice": shown.told["device_choice"],
            "whole_s": speed.whole_s,
            "whole_samples_s": [run.whole_s for run in self.runs],
            "rows_per_s": speed.rows_per_s,
            "rows_samples_per_s": [run.rows.per_s for run in self.runs],
            "cpu_s_each": speed.cpu_s_each,
            "peak_memory_nbytes": [run.peak_memory_nbytes for run in self.runs],
            "rows": asdict(shown.rows),
            **{name: shown.told[name] for name in ("stages", "rates", "timings")},
        }


def run_whole(work: Work, precision: str, decode: str, folder: Path, say: Callable[[str], None]) -> WholeRuns:
    """The folder to a CSV. folder: for what is written. Raises Error where `infer` gives no rows."""
    output, environ = folder / _OUTPUT, with_byte_code(str(folder / "byte-code"))
    command = infer_command(work.wanted.folder, *options(work.wanted, precision, decode), "--output", output)
    runs, digests, failures = [], [], []
    way = f"{precision}, decoded by the {decode.upper()}"
    for number in range(1 + work.wanted.repeats):
        step = f"whole run {number} of {work.wanted.repeats}" if number else "warming up"
        say(f"{way}: {step}")
        output.unlink(missing_ok=True)
        found = watch(command, output, environ)
        if number:
            runs.append(found)
            digests.append(hashlib.sha256(output.read_bytes()).hexdigest())
    if len(set(digests)) > 1:
        failures.append(f"{way}: the rows of whole runs differ: {len(set(digests))} files of {len(digests)} runs")
    best, errors = read_rows(output)
    if errors:
        count = f"{len(errors):,} of {len(best):,}"
        failures.append(f"{way}: {count} have no answer, the first: {errors[0]}")
    return WholeRuns(precision, decode, tuple(runs), best, tuple(failures))


def options(wanted: Wanted, precision: str, decode: str) -> list[object]:
    """Those of `infer` that say the same as ours."""
    device = ("--devices", ",".join(wanted.devices)) if len(wanted.devices) > 1 else ("--device", wanted.device)
    words: list[object] = ["--model", wanted.model.path, *device, "--precision", precision]
    words += ["--kernels", wanted.kernels, "--decode", decode, "--top", TOP]
    if wanted.size:
        words += ["--size", f"{wanted.size[0]}x{wanted.size[1]}"]
    return words + (["--batch", wanted.batch] if wanted.batch else [])


def read_rows(output: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The first class of each row of a .csv, -1 where there is none; and why some have no answer."""
    with output.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(int(row.get("class_1") or -1) for row in rows), tuple(row["error"] for row in rows if row["error"])
