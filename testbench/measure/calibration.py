"""How long `calibrate` takes, whole processes from start to end, with kernels and byte code in caches.

    python -m testbench.measure.calibration MODEL --images DIR --output FILE

One run before does not count. All runs must choose the same scales, to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import scales_path
from vgg16gpu.devices import open_device

LIMIT, REPEATS = 500, 3


@dataclass(frozen=True)
class Run:
    """One process. digest: of the scales that it wrote."""

    seconds: float
    digest: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 1 if two runs chose other scales."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, default=LIMIT, help="images")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    opened = open_device(options.device)
    try:
        told = environment(opened.device)
    finally:
        opened.device.close()
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as name:
        model = Path(name, "model.onnx")
        model.symlink_to(Model(options.model).path.resolve())  # the scales are written beside it
        words = ("--images", options.images, "--limit", options.limit, "--device", options.device)
        _, *runs = [_run(model, words) for _ in range(1 + options.repeats)]
    seconds = [run.seconds for run in runs]
    are_equal = len({run.digest for run in runs}) == 1
    content = {"what": "calibrate, whole processes", "images": options.limit, "environment": told}
    write(options.output, {**content, "calibrate_s": seconds, "scales_are_equal": are_equal})
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    print(f"calibrate, {options.limit} images: {statistics.median(seconds):.2f} s ({spread})")
    return 0 if are_equal else 1


def _run(model: Path, words: Sequence[object]) -> Run:
    """Raises CalledProcessError, its last words on stderr, where it fails."""
    scales = scales_path(model)
    scales.unlink(missing_ok=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", "vgg16gpu", "calibrate", str(model), *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Run(time.perf_counter() - start, hashlib.sha256(scales.read_bytes()).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
