"""Runs Nsight Compute (ncu) on a variant: the ten readings that matter, what each says, and what bounds each kernel."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from vgg16gpu.errors import DeviceError
from vgg16gpu_lab.problem import Problem

SCHEMA: Final = 1
SECONDS: Final = 900.0  # a kernel is run anew for every group of counters
BUSY: Final = 60.0  # percent of its peak from which on a unit bounds a kernel
NO_NCU: Final = (
    "Nsight Compute is not here: no ncu on PATH nor in CUDA_HOME; it comes with a CUDA toolkit (package nsight-compute)"
)
METHOD: Final = (
    "ncu --clock-control none: at the clocks that the card chooses. Caches are empty before each pass; a launch is not "
    "in the time"
)

Values: TypeAlias = Mapping[str, float | None]  # by metric; None: ncu had none


@dataclass(frozen=True)
class Reading:
    """One of ncu's metrics: what it is called here, how it is shown, and what it says."""

    name: str
    metric: str
    unit: str
    meaning: str
    factor: float = 1.0  # from ncu's base unit


READINGS: Final = (
    Reading("time", "gpu__time_duration.sum", "us", "of the kernel alone, without its launch", 1e-3),
    Reading(
        "multiprocessors",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "how busy their busiest unit is, arithmetic or L1: from 60 on it bounds the kernel",
    ),
    Reading(
        "memory",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "how busy the card's memory is: from 60 on it bounds the kernel, and only fewer bytes help",
    ),
    Reading(
        "issue slots",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "%",
        "cycles in which a scheduler had an instruction to issue: what is missing to 100 was waiting",
    ),
    Reading(
        "waiting for memory",
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        "warps",
        "that wait for a load from L1, L2 or memory at each instruction issued: load earlier, or keep more warps",
    ),
    Reading(
        "occupancy",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "%",
        "warps that are there, of those that a multiprocessor can hold: `lab list --kernels` says what limits them",
    ),
    Reading(
        "sectors a load",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
        "sectors",
        "of 32 bytes that a warp's load touches: 4 for 32 neighbouring floats, 32 where each lane is elsewhere",
    ),
    Reading(
        "bank conflicts",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "turns",
        "lost in shared memory because lanes wanted other words of the same bank: pad or swizzle the array",
    ),
    Reading("L1 hits", "l1tex__t_sector_hit_rate.pct", "%", "sectors found in L1: high means that a tile gains little"),
    Reading("L2 hits", "lts__t_sector_hit_rate.pct", "%", "sectors found in L2: the rest came from the card's memory"),
)
_BY_NAME: Final = {reading.name: reading.metric for reading in READINGS}


@dataclass(frozen=True)
class Profile:
    """One launch of a kernel."""

    kernel: str
    grid: str
    block: str
    values: Values

    @property
    def bound(self) -> str:
        """Bound of the kernel, as far as the readings tell."""
        memory, busy = self.values.get(_BY_NAME["memory"]), self.values.get(_BY_NAME["multiprocessors"])
        if memory is None or busy is None:
            return "unknown: ncu gave no reading of memory or multiprocessors"
        if max(memory, busy) < BUSY:
            return "latency: no unit is busy, warps wait for each other, for loads, or for more blocks"
        return "memory" if memory >= busy else "the multiprocessors' busiest unit"


@dataclass(frozen=True)
class Job:
    """What is run under ncu."""

    variant: str
    problem: Problem
    device: str = "cuda"
    folder: Path | None = None  # of somebody's own variants


def find_ncu() -> Path | None:
    """Return the first ncu on PATH or in CUDA_HOME, CUDA_ROOT, /usr/local/cuda."""
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_ROOT")]
    folders = [Path(home) for home in homes if home] + [Path("/usr/local/cuda")]
    places = [place for folder in folders for place in (folder / "bin" / "ncu", *folder.glob("nsight-compute*/ncu"))]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def profile(job: Job) -> tuple[tuple[Profile, ...], dict[str, Any]]:
    """Run a variant once under ncu: its kernels' readings, and the environment. Raises DeviceError where it cannot."""
    ncu = find_ncu()
    if ncu is None:
        raise DeviceError(NO_NCU)
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        task, environment = Path(folder, "task.json"), Path(folder, "environment.json")
        content = asdict(job) | {"folder": str(job.folder) if job.folder else None, "environment": str(environment)}
        task.write_text(json.dumps(content), encoding="utf-8")
        done = _run([*_command(ncu), sys.executable, "-m", "vgg16gpu_lab.measure.profile_target", str(task)])
        found = read_csv(done.stdout)
        if done.returncode or not found or not environment.is_file():
            raise DeviceError(_complaint(ncu, done))
        return found, json.loads(environment.read_text(encoding="utf-8"))


def read_csv(text: str) -> tuple[Profile, ...]:
    """Parse `ncu --csv --print-units base`: a line for each metric of each launch, other lines in between."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, dict[str, float | None]] = {}
    heads: dict[str, tuple[str, str, str]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        name = row["Kernel Name"].partition("(")[0]
        heads[row["ID"]] = name, row.get("Grid Size", ""), row.get("Block Size", "")
        launches.setdefault(row["ID"], {})[row["Metric Name"]] = _number(row["Metric Value"])
    return tuple(Profile(*heads[launch], values) for launch, values in launches.items())


def content(job: Job, found: Sequence[Profile], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile as JSON, for a record."""
    return {
        "schema": SCHEMA,
        "variant": job.variant,
        "problem": asdict(job.problem),
        "method": METHOD,
        "environment": environment,
        "readings": [asdict(reading) for reading in READINGS],
        "kernels": [asdict(launch) | {"bound": launch.bound} for launch in found],
    }


def told(launch: Profile) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value with its unit, what it says) of each reading."""
    for reading in READINGS:
        value = launch.values.get(reading.metric)
        shown = "-" if value is None else f"{_digits(reading.factor * value)} {reading.unit}"
        yield reading.name, shown, reading.meaning


def _command(ncu: Path) -> list[str]:
    metrics = ",".join(reading.metric for reading in READINGS)
    return [str(ncu), "--clock-control", "none", "--csv", "--print-units", "base", "--metrics", metrics]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # decimal points
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{command[0]} did not end within {SECONDS:g} s; take a smaller --size") from error
    except OSError as error:
        raise DeviceError(f"{command[0]} cannot be run: {error.strerror}") from error


def _complaint(ncu: Path, done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("==ERROR==")] or lines[-1:] or [f"exit code {done.returncode}"]
    hint = ""
    if any("ERR_NVGPUCTRPERM" in line for line in said):
        hint = (
            "; only root may read counters here: run as root, or set the driver's NVreg_RestrictProfilingToAdminUsers=0"
        )
    return f"{ncu} gave no readings: {said[0].removeprefix('==ERROR==').strip()}{hint}"


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:  # n/a
        return None


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
