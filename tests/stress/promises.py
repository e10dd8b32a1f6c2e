"""The promises under stress, measured on a whole model: strange images, natural ones, bits, and memory.

    python -m tests.stress.promises MODEL.onnx [--images DIR] [--output FILE]

scores: fp32 with a strange image in the batch, or scales that fit nothing, is no worse than 1.5 times a library's
strict float32 (or 1e-5), and no image changes the bits of another. Needs torch.
photographs: at most 1 % of random crops of the photographs in DIR go through the second pass.
bits: a thousand runs, other positions and a new engine give the same bits in every precision (int8 with its scales).
replays: so do many thousands of replays of one image's launches, and of whole runs with their copies, while another
process computes on the same device.
memory, on a GPU: with 1 GB free fp32 batch 8 and fp16 batch 32 run; with 300 MB fp32 is refused and nothing is lost.

Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.stress import bits as stress_bits
from tests.stress import memory as stress_memory
from tests.stress import photos as stress_photos
from tests.stress import replays as stress_replays
from tests.stress import scores as stress_scores
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.cli.common.show import add_row, console, heading, table
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.compiler.quantization.scale_file import scales_path
from vgg16gpu.devices import open_device
from vgg16gpu.errors import Error
from vgg16gpu.runtime.engine import Engine


class Row(Protocol):
    """A frozen dataclass: one measurement."""

    @property
    def passed(self) -> bool:
        """Whether the promise was kept."""

    def cells(self) -> tuple[object, ...]:
        """What a table shows of it."""


@dataclass(frozen=True)
class Part:
    """What is measured together: a table, and a list in the record."""

    name: str
    title: str
    columns: Sequence[str]
    measure: Callable[[argparse.Namespace], Iterator[Any]]


def scores(options: argparse.Namespace) -> Iterator[stress_scores.Stressed]:
    """fp32 under stress, beside torch."""
    import torch  # here: the other parts do without

    from testbench.measure.torch_layers import network

    with Engine(options.model, device=options.device, batch=stress_scores.BATCH) as engine:
        device = options.device if options.device != "auto" else engine.device.facts.kind
        exact, library = (network(engine.graph, device, dtype) for dtype in (torch.float64, torch.float32))
        yield from stress_scores.measure(engine, exact, library)


def photographs(options: argparse.Namespace) -> Iterator[stress_photos.Photographs]:
    """The rate of second passes, if there are images."""
    if options.images:
        with Engine(options.model, device=options.device, batch=stress_photos.BATCH) as engine:
            yield stress_photos.measure(engine, options.images, options.crops)


def bits(options: argparse.Namespace) -> Iterator[stress_bits.Bits]:
    """In every precision."""
    for precision in precisions(options.model):
        yield from stress_bits.measure(options.model, options.device, precision, options.runs)


def replays(options: argparse.Namespace) -> Iterator[stress_replays.Replays]:
    """In every precision."""
    for precision in precisions(options.model):
        yield stress_replays.measure(options.model, options.device, precision, options.replays)


def precisions(model: Path) -> list[str]:
    """Those that the model can be run in."""
    return [precision for precision in PRECISIONS if precision != "int8" or scales_path(model).is_file()]


def memory(options: argparse.Namespace) -> Iterator[stress_memory.Attempt]:
    """A full card; the memory of a CPU is the machine's."""
    if options.kind == "cuda":
        yield from stress_memory.measure(options.model, options.device)


PARTS = (
    Part("scores", "fp32, errors max|y - r| / max|r|", stress_scores.COLUMNS, scores),
    Part("photographs", "fp32, random crops of photographs", stress_photos.COLUMNS, photographs),
    Part("bits", "Bits of the scores", stress_bits.COLUMNS, bits),
    Part("replays", "Replays beside another process", stress_replays.COLUMNS, replays),
    Part("memory", "Nearly full", stress_memory.COLUMNS, memory),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure part by part, print the tables, write the record; 1 if a promise is broken or a part fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.promises", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, metavar="DIR", help="Photographs; without them their part is left out.")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="Only these.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--crops", type=int, default=1000, help="At least so many, of all photographs together.")
    parser.add_argument("--runs", type=int, default=1000, help="Of each precision and batch size.")
    parser.add_argument("--replays", type=int, default=25_000, help="Of each precision, and runs.")
    parser.add_argument("--output", type=Path, help="Write what was measured as JSON.")
    options = parser.parse_args(arguments)
    device, choice = open_device(options.device)
    with closing(device):
        options.kind, where = device.facts.kind, {"device_choice": choice, **environment(device)}
    parts = {part.name: run(part, options) for part in PARTS if part.name in (options.parts or [part.name])}
    failures = [f"{name}: {reason}" for name, content in parts.items() for reason in content["failures"]]
    if options.output:
        record = {
            "what": "promises under stress: fp32 on strange and natural images, bits, memory",
            "model": options.model.name,
            "passed": not failures,
            "failures": failures,
            **parts,
            "environment": where,
        }
        write(options.output, record)
    for failure in failures:
        print(f"FAIL: {failure}")
    return int(bool(failures))


def run(part: Part, options: argparse.Namespace) -> dict[str, Any]:
    """Rows, failures and seconds of one part, shown as soon as it is done. An Error ends the part, not the others."""
    rows: list[Any] = []
    failures: list[str] = []
    started = time.perf_counter()
    try:
        rows.extend(part.measure(options))
    except Error as error:
        failures.append(f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - started
    failures += [" ".join(str(cell) for cell in row.cells()) for row in rows if not row.passed]
    if rows:
        show(part, rows, seconds)
    return {
        "seconds": round(seconds, 2),
        "rows": [{**asdict(row), "passed": row.passed} for row in rows],
        "failures": failures,
    }


def show(part: Part, rows: Sequence[Row], seconds: float) -> None:
    """A table on stdout."""
    screen = console()
    heading(screen, f"{part.title} ({seconds:.1f} s)")
    result = table([*part.columns, "verdict"], right=part.columns[1:])
    for row in rows:
        style = None if row.passed else "red"
        add_row(result, *row.cells(), "PASS" if row.passed else "FAIL", style=style)
    screen.print(result)


if __name__ == "__main__":
    sys.exit(main())
