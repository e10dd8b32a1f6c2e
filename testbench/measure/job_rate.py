"""How fast shards are computed: by one process with a pool of all devices, and by Ray with an actor for each.

    python -m testbench.measure.job_rate MODEL --pictures DIR --output FILE      needs ray

The pictures are named so often that every device has several shards. A rate is that of the rows between the end of the
first shard and the end of the last one: neither building engines nor starting Ray is in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device
from vgg16gpu.devices.several import resolve_devices

EACH = 4  # shards for each device, at least


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 1 if a job gave other rows than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pictures", type=Path, required=True, metavar="DIR")
    parser.add_argument("--devices", default="all", help="all, or cpu:N")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--shard-size", type=int, default=25600)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    names = resolve_devices(options.devices)
    opened = open_device(names[0])
    try:
        told = environment(opened.device)
    finally:
        opened.device.close()
    files = sorted(map(str, options.pictures.iterdir()))
    wanted = EACH * len(names) * options.shard_size
    listed = (files * (1 + wanted // len(files)))[:wanted]
    kind = "cpu" if names[0] == "cpu" else "cuda"
    ways = {
        "pool": ("--devices", ",".join(names), "--shard", "0/1"),
        "ray": ("--device", kind, "--ray", f"local:{len(names)}"),
    }
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as name:
        manifest = Path(name, "list.txt")
        manifest.write_text("\n".join(listed), encoding="utf-8")
        common = ["--files-from", manifest, "--model", options.model, "--precision", options.precision]
        common += ["--shard-size", options.shard_size, "--quiet"]
        found = {way: _run(Path(name, way), [*common, *words]) for way, words in ways.items()}
    share = found["ray"]["rows_per_s"] / found["pool"]["rows_per_s"]
    content = {"what": "shards by a pool and by Ray", "environment": told, "devices": len(names), "jobs": found}
    write(options.output, {**content, "precision": options.precision, "ray_by_pool": share})
    print(f"{options.precision}: {found}, Ray {share:.1%} of the pool")
    return 0 if all(job["rows"] == wanted for job in found.values()) else 1


def _run(folder: Path, words: Sequence[object]) -> dict[str, Any]:
    command = [sys.executable, "-m", "vgg16gpu", "infer", *map(str, words), "--output", str(folder)]
    subprocess.run(command, check=True)
    lines = [json.loads(line) for path in folder.glob("_log/*") for line in path.read_text().splitlines()]
    lines.sort(key=lambda line: float(line["ended"]))
    rows = sum(line["rows"] for line in lines[1:])
    summary = json.loads((folder / "_summary.json").read_text())
    return {"rows": summary["rows"], "rows_per_s": rows / (lines[-1]["ended"] - lines[0]["ended"]), "shards": lines}


if __name__ == "__main__":
    sys.exit(main())
