"""Write the README's tables of results, between its markers, and its chart, from the recorded ones.

No figure in the README has another source: they all come from JSON files in testbench/results. --check writes nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.plot import write_plot
from vgg16gpu.bench.record import Content, batches, fastest, headline, names, peers, precisions, read, select
from vgg16gpu.bench.timing import Method, Regime

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "testbench" / "results"
BENCH, CHART = "bench-h200.json", "chart-h200.png"
OTHERS = ("bench-h200-244.json",)  # of another size; they may be missing
BEGIN, END = "<!-- results: begin (tools/readme_table.py) -->\n", "<!-- results: end -->\n"

# Milliseconds per image, 3x244x244, that the report which started this project published for its own machines.
PUBLISHED = (
    ("naive kernels, partial sums on the host", 20803),
    ("sums in shared memory", 1198),
    ("onnxruntime, a PC's CPU", 229),
)


def load(name: str) -> Content:
    """A recorded result of the testbench."""
    content: Content = json.loads((RESULTS / name).read_text())
    return content


def figure(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".")


def row(label: str, cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {label} | {' | '.join(cells)} |\n"


def gpu_table(bench: Content) -> str:
    """Ours and the best peer on the GPU, by precision and batch size."""
    shape = "x".join(map(str, bench["model"]["input_shape"]))
    sizes = batches(bench)
    title = f"VGG16, {shape}, ms per batch on one {bench['device']['name']}, device-resident, back to back"
    text = row(title, [f"batch {batch}{_load(bench, batch)}" for batch in sizes]) + row("---", ["---:"] * len(sizes))
    for precision in precisions(bench):
        text += _precision_rows(bench, precision)
    cpu = [fastest(select(bench, name="onnxruntime", variant="CPU provider", batch=batch)) for batch in sizes]
    if all(cpu):
        version, cores = bench["environment"]["versions"]["onnxruntime"], bench["environment"]["cores"]
        cells = [figure(1000 * record["median_s"]) for record in cpu if record]
        text += row(f"fp32, onnxruntime {version} on {cores} cores of that machine's CPU", cells)
    return text


def _load(bench: Content, batch: int) -> str:
    """What a batch size's column says of the regime."""
    shown = [headline(bench, precision, batch, Method.BACK_TO_BACK) for precision in precisions(bench)]
    loaded = any(records and records[0]["regime"] == Regime.SUSTAINED for records in shown)
    return f", {Regime.SUSTAINED}" if loaded else ""


def _precision_rows(bench: Content, precision: str) -> str:
    """Ours, the best peer and the ratio; ours alone where no peer was measured."""
    records = [headline(bench, precision, batch, Method.BACK_TO_BACK) for batch in batches(bench)]
    ours = [fastest(record for record in found if record["name"] == NAME) for found in records]
    theirs = [fastest(peers(found)) for found in records]
    text = row(f"**{precision}, vgg16gpu**", [f"**{_ms(record)}**" if record else "" for record in ours])
    rivals = names(peers(record for found in records for record in found))
    if not rivals:
        return text
    versions = bench["environment"]["versions"]
    listed = ", ".join(f"{name} {versions.get(name, '')}".strip() for name in rivals)
    strict = "strict fp32" if precision == "fp32" else precision
    remark = "; random data" if any(record and record["unchecked"] for record in theirs) else ""
    cells = [f"{_ms(record)} {record['name']}" if record else "" for record in theirs]
    text += row(f"best {strict} peer of {listed}{remark}", cells)
    pairs = zip(ours, theirs, strict=True)
    return text + row("ratio", [f"{b['median_s'] / a['median_s']:.2f}x" if a and b else "" for a, b in pairs])


def _ms(record: Content) -> str:
    return figure(1000 * record["median_s"])


def report_table(testbench: Content, laptop: Content) -> str:
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
    return f"{text}\nMeasured {_when(testbench)} on the GPU, {_when(laptop)} on the CPU.\n"


def origin(bench: Content) -> str:
    """When a record was made, of which commit and with what."""
    where: dict[str, Any] = bench["environment"]
    return (
        f"Measured {_when(bench)}, driver {where['cuda']['driver']}, CUDA {where['cuda']['cuda']}, "
        f"PyCUDA {where['versions']['pycuda']}."
    )


def _when(record: Content) -> str:
    where = record["environment"]
    return f"{where['date'][:10]} at commit {where['commit']['hash'][:10]}"


def untimed(bench: Content) -> str:
    """What a record could not time, since the scores were out of bounds."""
    failures = [failure.partition(":")[0] for failure in bench["failures"]]
    return f" Not timed, for the reasons in the record: {'; '.join(failures)}." if failures else ""


def remarks(bench: Content) -> str:
    """How the figures came about, in a few lines."""
    errors = bench["verification"]["worst_errors"].items()
    error = ", ".join(f"{error:.1e} ({precision})" for precision, error in errors if error is not None)
    shape = "x".join(map(str, bench["model"]["input_shape"]))
    text = f"At {shape} scores differ from onnxruntime's by {error} of the largest."
    if bench["cold_start"]:
        text += f" Cold start to answer: {1000 * bench['cold_start']['to_result_s']:.0f} ms."
    text += "\nPeers: the fastest variant of each, in turns with ours in one process, the same inputs, no TF32 in fp32."
    if select(bench, name="jax"):
        text += " JAX by the wall clock of queued calls, all others between events."
    if select(bench, regime=Regime.SUSTAINED):
        sustained = bench["methods"][Regime.SUSTAINED.value].partition(";")[0]
        text += f" Sustained: {sustained}; the other sizes in short bursts."
    missing = {"TensorRT": "tensorrt", "JAX": "jax"}
    absent = [shown for shown, name in missing.items() if not select(bench, name=name)]
    if absent:
        text += f" {' and '.join(absent)} {'were' if len(absent) > 1 else 'was'} not compared."
    return text + (
        '\n"Published" is the report that this project started from, each figure on its authors\' own machine.\n'
    )


def render() -> str:
    """Everything between the markers."""
    bench = read(RESULTS / BENCH)
    sizes = [bench, *(read(RESULTS / name) for name in OTHERS if (RESULTS / name).exists())]
    tables = [f"{gpu_table(each)}\n{origin(each)}{untimed(each)}\n" for each in sizes]
    tables.append(report_table(load("testbench-h200.json"), load("testbench-cpu.json")))
    if (RESULTS / CHART).exists():
        tables.insert(0, f"![Time beside the best peer's](testbench/results/{CHART})\n")
    return "\n".join([*tables, remarks(bench)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the README and, with matplotlib, the chart; with --check return 1 when the README is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    if not check and importlib.util.find_spec("matplotlib") is not None:
        write_plot(read(RESULTS / BENCH), RESULTS / CHART, layers=False)
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    fresh = head + BEGIN + render() + END + tail
    return settle(README, fresh, "tools/readme_table.py", check=check)


def settle(page: Path, fresh: str, tool: str, *, check: bool) -> int:
    """Write what a page should be; or say whether it is that, and return 1 if not."""
    if check:
        is_fresh = page.read_text() == fresh
        print(f"{page.name} is {'up to date' if is_fresh else f'out of date: run python {tool}'}")
        return int(not is_fresh)
    page.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
