"""Time `infer` of one picture in fresh processes of checkouts' packages, in turn: for `testbench/record.py`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from vgg16gpu.bench.measure.cold_start import Start, median_parts, one_start, with_byte_code
from vgg16gpu.bench.measure.environment import commit, environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device


@dataclass(frozen=True)
class Starter:
    """A checkout's command, and the environment in which it keeps byte code of its own."""

    checkout: Path
    command: Sequence[str]
    environ: Mapping[str, str]

    def __call__(self) -> Start:
        """One process. Raises Error when it fails."""
        return one_start(self.command, self.environ)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start each once untimed, then `--runs` times; write every sample, the medians and their parts, in seconds."""
    parser = argparse.ArgumentParser(prog="testbench/recording/starts.py", description="Time the start of infer.")
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        starters = [
            _starter(checkout.resolve(), options, Path(folder, str(number)))
            for number, checkout in enumerate(options.checkouts)
        ]
        samples = in_turns(starters, options.runs)
    with closing(open_device(options.device).device) as device:  # now that nothing is timed any more
        here = environment(device)
    found = [
        {**_content(starts), "environment": {**here, "commit": commit(starter.checkout)}}
        for starter, starts in zip(starters, samples, strict=True)
    ]
    write(options.output, {"checkouts": found})


def in_turns(starters: Sequence[Starter], runs: int) -> list[list[Start]]:
    """The starts of each, after one that does not count; who begins a round ends the next one."""
    found: list[list[Start]] = [[] for _ in starters]
    for run in range(1 + runs):
        order = range(len(starters)) if run % 2 else reversed(range(len(starters)))
        for number in order:
            found[number].append(starters[number]())
    return [starts[1:] for starts in found]


def _starter(checkout: Path, options: argparse.Namespace, byte_code: Path) -> Starter:
    # -P: the folder in which this runs is a checkout, too, and must not come before the one that is asked for.
    command = [sys.executable, "-P", "-u", "-m", "vgg16gpu", "-v", "infer", str(options.picture.resolve())]
    command += ["--model", options.model, "--device", options.device]
    others = filter(None, [os.environ.get("PYTHONPATH")])
    environ = with_byte_code(str(byte_code)) | {"PYTHONPATH": os.pathsep.join([str(checkout), *others])}
    return Starter(checkout, command, environ)


def _content(starts: Sequence[Start]) -> dict[str, Any]:
    results, exits = [start.result_s for start in starts], [start.exit_s for start in starts]
    medians = {"to_result_s": median(results), "to_exit_s": median(exits)}
    return {**medians, "results_s": results, "exits_s": exits, "parts_s": median_parts(starts)}


if __name__ == "__main__":
    main()
