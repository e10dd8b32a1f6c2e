"""Where a cold start goes: `infer` of one input in fresh processes, caches warm, with its parts.

    python -m testbench.measure.cold_start MODEL.onnx [--device cuda] [--precision fp32] [--runs 9] [--output FILE]

The record's "what" says how it is timed and what the parts are. The kernels come from the user's cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vgg16gpu.bench.measure.cold_start import DESCRIPTION, ColdStart, measure_cold_start
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.cold_start", description="Where a cold start goes."
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--runs", type=int, default=9, help="processes; one more before them is not counted")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    graph = Model(options.model).graph()
    x = sample_inputs(resolve_input_shape(graph, 1, None)[1:])[0]
    found = measure_cold_start(
        options.model,
        options.device,
        x,
        channels_last=graph.input.channels_last,
        precision=options.precision,
        runs=options.runs,
    )
    _show(found)
    if options.output:
        device, _ = open_device(options.device)  # only now: a start beside another context would be another start
        try:
            where = environment(device)
        finally:
            device.close()
        content = {"what": DESCRIPTION, "model": str(options.model), "precision": options.precision}
        content |= {"environment": where, "cold_start": asdict(found)}
        write(options.output, content)
    return 0


def _show(found: ColdStart) -> None:
    shown = table(["part", "ms"], right=["ms"])
    whole = {"to the answer": found.to_result_s, "to the end": found.to_exit_s}
    for name, seconds in {**found.parts_s, **whole}.items():
        add_row(shown, name, f"{1e3 * seconds:.0f}")
    console().print(shown)


if __name__ == "__main__":
    sys.exit(main())
