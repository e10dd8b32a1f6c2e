"""Somebody's own kernel, tried on a small image in a process of its own: one that crashes or hangs takes that alone.

python -m vgg16gpu.lab.rehearsal    reads what to try from standard input, as JSON
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from vgg16gpu.devices import open_device
from vgg16gpu.lab.folder import own_variants
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.trial import Trial
from vgg16gpu.lab.variant import Parameters, Variant

SECONDS: Final = 30.0  # compiling included
LARGEST: Final = 40  # rows and columns of the image


def rehearse(folder: Path, device: str, variant: Variant, problem: Problem, parameters: Parameters) -> str:
    """Why a variant of the folder must not be run in this process; "" where nothing is known against it.

    What it does wrong in other ways, the run itself finds and says better.
    """
    side = max(LARGEST, problem.kernel)
    small = replace(problem, height=min(problem.height, side), width=min(problem.width, side))
    task = {
        "folder": str(folder),
        "device": device,
        "variant": variant.name,
        "problem": asdict(small),
        "parameters": dict(parameters),
    }
    command = [sys.executable, "-m", "vgg16gpu.lab.rehearsal"]
    try:
        done = subprocess.run(
            command, input=json.dumps(task), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS:g} s on an image of {small.height}x{small.width}: a loop without an end?"
    if done.returncode >= 0:
        return ""
    name = signal.Signals(-done.returncode).name
    return f"ended its process by {name}: it reads or writes far outside of its arrays"


def main() -> None:
    """Run the task once. Errors of all kinds are met again by whoever asked."""
    task = json.load(sys.stdin)
    variant = next(found for found in own_variants(Path(task["folder"])) if found.name == task["variant"])
    device, _ = open_device(task["device"])
    with Trial(device, variant, Problem(**task["problem"]), task["parameters"]) as trial:
        trial.run()


if __name__ == "__main__":
    main()
