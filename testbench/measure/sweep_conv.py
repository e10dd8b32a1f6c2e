"""Time every convolution of a model with every tile and split of kernels/conv/conv_igemm.cu, on the GPU.

The cost model in vgg16gpu/compiler/op_kernels/conv/conv_igemm.py was fitted to such a sweep. Checks first that no
choice changes a bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.op_kernels.conv import conv_igemm
from vgg16gpu.compiler.op_kernels.conv.conv_igemm import TILES, ConvTile
from vgg16gpu.runtime.engine import Engine

LAUNCHES = 10  # in one graph, so that launch gaps are a GPU's and not the host's
REPEATS = 5
SPLITS = (1, 2, 4, 8)


def cut_everything(tile: ConvTile, splits: int) -> Any:
    """Every convolution runs with this tile, and as near to these splits as its groups allow."""

    def cut(_rows: int, _columns: int, groups: int, *_: Any) -> tuple[ConvTile, int]:
        return tile, min(groups, splits)

    return mock.patch.object(conv_igemm, "choose_cut", cut)


def sweep(model: Path, batch: int) -> Iterator[dict[str, Any]]:
    """One record for each layer, tile and split. Raises SystemExit if two choices give different scores."""
    expected = None
    for tile in TILES:
        for splits in SPLITS:
            with cut_everything(tile, splits), Engine(model, device="cuda", batch=batch) as engine:
                x = np.random.default_rng(0).standard_normal(engine.program.input.shape, np.float32)
                scores = engine.run(x)
                expected = scores if expected is None else expected
                if not np.array_equal(scores, expected):
                    sys.exit(f"tile {tile}, {splits} splits: other scores than before")
                yield from time_layers(engine, tile, splits, batch)


def time_layers(engine: Engine, tile: ConvTile, splits: int, batch: int) -> Iterator[dict[str, Any]]:
    """Microseconds of each convolution, the addition of its group sums included."""
    by_value: dict[str, list[Any]] = {}
    for step in engine.program.steps:
        if step.kernel.source == conv_igemm.SOURCE:
            by_value.setdefault(step.names[-1], []).append(step)
    for value, steps in by_value.items():
        run = engine.executor.bind(steps * LAUNCHES)
        run()
        us = 1e6 * median(engine.device.measure(run, REPEATS)) / LAUNCHES
        yield {
            "batch": batch,
            "layer": value,
            "tile": f"{tile.px}x{tile.oc}/{tile.thread_px}x{tile.thread_oc}",
            "splits": steps[0].grid.z if splits > 1 else 1,
            "us": round(us, 2),
            "tflop_per_s": round(steps[0].flop / us / 1e6, 2),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, print the best of each layer, write everything."""
    parser = argparse.ArgumentParser(prog="python -m testbench.measure.sweep_conv", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    records = [record for batch in options.batch for record in sweep(options.model, batch)]
    with Engine(options.model, device="cuda") as engine:
        facts = environment(engine.device)
    write(options.output, {"records": records, "environment": facts})
    for batch, layer in dict.fromkeys((record["batch"], record["layer"]) for record in records):
        here = [record for record in records if (record["batch"], record["layer"]) == (batch, layer)]
        fastest = sorted(here, key=lambda record: record["us"])[:3]
        print(batch, layer, *(f"{r['tile']} z{r['splits']} {r['us']} us" for r in fastest), sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
