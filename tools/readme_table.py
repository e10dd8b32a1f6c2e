"""Write the README's table of results, between its markers, from the recorded ones. `--check` writes nothing.

No figure in the README has another source: they all come from JSON files in testbench/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "testbench" / "results"
BEGIN, END = "<!-- results: begin (tools/readme_table.py) -->\n", "<!-- results: end -->\n"

Result = dict[str, Any]

# Milliseconds per image, 3x244x244, that the report which started this project published for its own machines.
PUBLISHED = (
    ("naive kernels, partial sums on the host", 20803),
    ("sums in shared memory", 1198),
    ("onnxruntime, a PC's CPU", 229),
)


def load(name: str) -> Result:
    """A recorded result."""
    content: Result = json.loads((RESULTS / name).read_text())
    return content


def best(batch: Result, name: str, method: str) -> tuple[float, str]:
    """(milliseconds, variant) of the fastest entry of that name."""
    entries = [entry for entry in batch["entries"] if entry["name"] == name and method in entry["times"]]
    fastest = min(entries, key=lambda entry: entry["times"][method]["median_s"])
    return 1000 * fastest["times"][method]["median_s"], fastest["variant"]


def figure(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".")


def row(label: str, cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {label} | {' | '.join(cells)} |\n"


def gpu_table(bench: Result) -> str:
    """Ours and the peers on the GPU, per batch size."""
    versions = bench["environment"]["versions"]
    batches = bench["batches"]
    ours = [best(batch, "vgg16gpu", "back to back")[0] for batch in batches]
    torch = [best(batch, "torch", "back to back") for batch in batches]
    cpu = [best(batch, "onnxruntime", "host to host")[0] for batch in batches]
    variants = sorted({variant for _, variant in torch})
    text = row(
        f"VGG16, 3x224x224, fp32, ms per run on one {bench['device']['name']}", [f"batch {b['batch']}" for b in batches]
    )
    text += row("---", ["---:"] * len(batches))
    text += row("**vgg16gpu**, FFMA kernels, device-resident, back to back", [f"**{figure(ms)}**" for ms in ours])
    text += row(f"torch {versions['torch']} + cuDNN ({'; '.join(variants)}), likewise", [figure(ms) for ms, _ in torch])
    text += row("ratio", [f"{theirs / mine:.2f}x" for mine, (theirs, _) in zip(ours, torch, strict=True)])
    cores = bench["environment"]["cores"]
    text += row(
        f"onnxruntime {versions['onnxruntime']} on {cores} cores of that machine's CPU", [figure(ms) for ms in cpu]
    )
    return text


def report_table(testbench: Result, laptop: Result) -> str:
    """Ours beside the published figures of the report that started the project."""
    times = testbench["mean_run_s"]
    most = max(times, key=int)
    text = row("VGG16, 3x244x244, mean of 10 inputs, host to host", ["ms per image"]) + row("---", ["---:"])
    text += row(
        f"**vgg16gpu**, {testbench['environment']['device']['name']} (x {most} iterations)",
        [f"**{figure(1000 * times[most])}**"],
    )
    cpu = laptop["mean_run_s"]
    text += row(
        f"vgg16gpu, the same kernels on {laptop['environment']['cores']} CPU cores",
        [f"{1000 * cpu[max(cpu, key=int)]:.0f}"],
    )
    for label, ms in PUBLISHED:
        text += row(f"published: {label}", [f"{ms}"])
    return text


def render() -> str:
    """Everything between the markers."""
    bench = load("bench-h200.json")
    cold = 1000 * bench["cold_start"]["to_result_s"]
    error = bench["verification"]["worst_error"]
    where = bench["environment"]
    text = gpu_table(bench) + "\n" + report_table(load("testbench-h200.json"), load("testbench-cpu.json")) + "\n"
    text += f"Scores differ from onnxruntime's by {error:.1e} of the largest. Cold start to answer: {cold:.0f} ms.\n"
    text += (
        '"Published" is the report that this project started from, each figure on its authors\' own machine. '
        f"Measured {where['date'][:10]} at commit {where['commit']['hash'][:10]}, driver {where['cuda']['driver']}, "
        f"CUDA {where['cuda']['cuda']}, PyCUDA {where['versions']['pycuda']}; torch with TF32 off. "
        "TensorRT was not compared.\n"
    )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the README, or with --check return 1 when it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    fresh = head + BEGIN + render() + END + tail
    if check:
        print(
            "README.md is up to date" if fresh == text else "README.md is out of date: run python tools/readme_table.py"
        )
        return int(fresh != text)
    README.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
