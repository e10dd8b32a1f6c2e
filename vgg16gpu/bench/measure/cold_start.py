"""From the start of a process to its printed answer: `python -m vgg16gpu infer`, with warm caches, and its parts."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.stages import BESIDE, read_stages
from vgg16gpu.errors import Error

DESCRIPTION = (
    "python -m vgg16gpu infer in a process of its own: from its start to the first byte that it prints, and to its "
    "end; kernels and Python's byte code, as an installed package has it, in caches, the model in the page cache (one "
    "run before, not counted); before this process uses the device. Parts: what "
    "infer -v says of itself in these runs, one after the other but for those that ran beside others; rest: what no "
    "part has, to the first byte"
)
RUNS = 3
REST = "rest"

_PACKAGES = str(Path(__file__).resolve().parents[3])  # so that it is this very package, wherever the command runs


@dataclass(frozen=True)
class ColdStart:
    """Medians in seconds, and every sample. `parts_s` by name; what ran beside others (`BESIDE`) is not in the sum."""

    to_result_s: float
    to_exit_s: float
    results_s: tuple[float, ...]
    exits_s: tuple[float, ...]
    parts_s: Mapping[str, float]


@dataclass(frozen=True)
class Start:
    """One process: seconds to the first byte on stdout, and to the end; what it said on stderr."""

    result_s: float
    exit_s: float
    said: str

    @property
    def parts_s(self) -> dict[str, float]:
        """Each stage that it told of, and the rest."""
        found = read_stages(self.said)
        known = sum(seconds for name, seconds in found.items() if not name.endswith(BESIDE))
        return {**found, REST: self.result_s - known}


def measure_cold_start(
    model: Path, device: str, x: Array, *, channels_last: bool = False, precision: str = "fp32", runs: int = RUNS
) -> ColdStart:
    """Classify one input (C, H, W) in a fresh process, `runs` times. Raises Error with its last line when it fails.

    `channels_last`: the model takes it as (H, W, C).
    """
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        image = Path(folder, "input.npy")
        np.save(image, np.moveaxis(x, 0, -1) if channels_last else x)
        command = [
            sys.executable,
            "-u",
            "-m",
            "vgg16gpu",
            "-v",
            "infer",
            str(image),
            "--model",
            str(model),
            "--device",
            device,
            "--precision",
            precision,
        ]
        if x.ndim == 3:
            command += ["--size", f"{x.shape[1]}x{x.shape[2]}"]
        environ = with_byte_code(folder)
        environ["PYTHONPATH"] = os.pathsep.join([_PACKAGES, environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        starts = [one_start(command, environ) for _ in range(1 + runs)][1:]
    results, exits = tuple(start.result_s for start in starts), tuple(start.exit_s for start in starts)
    return ColdStart(statistics.median(results), statistics.median(exits), results, exits, median_parts(starts))


def median_parts(starts: Sequence[Start]) -> dict[str, float]:
    """Return the median of each part, in seconds, over all starts; a missing part counts as 0."""
    parts = [start.parts_s for start in starts]
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: statistics.median(each.get(name, 0.0) for each in parts) for name in names}


def with_byte_code(folder: str) -> dict[str, str]:
    """Return the environment of a process that keeps byte code in `folder`, whatever is installed how and where.

    Installers compile a package once. Without that Python does it in every process: 0.3 s for this one and numpy.
    """
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


def one_start(command: Sequence[str], environ: Mapping[str, str]) -> Start:
    """Run a command to its end. Raises Error with its last line when it fails."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ) as process:
            assert process.stdout is not None  # a pipe was asked for
            process.stdout.read(1)
            result = time.perf_counter() - start
            process.stdout.read()
        end = time.perf_counter() - start
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if process.returncode:
        last = (said.splitlines() or ["no message"])[-1]
        raise Error(f"cold start: infer ended with {process.returncode}: {last}")
    return Start(result, end, said)
