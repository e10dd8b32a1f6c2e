"""Whole networks with a card's own table of tiles and with that of its nearest relative, in turns.

    python -m testbench.measure.tile_tables MODEL... --own TABLE.json [--precision LIST] [--batch LIST] [--output F]

TABLE.json is what `vgg16gpu tune --table` wrote on this card, or the package's. The other table is the one that this
card would have if the package had none of its name. Exit code 1 where a network takes longer with that one than
`bound` allows, in the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.measure.layers import EngineContender
from vgg16gpu.bench.measure.timing import Method, one_run
from vgg16gpu.bench.records.record import write
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.devices import open_device, tuned
from vgg16gpu.devices.tuned import Kin
from vgg16gpu.errors import InputError
from vgg16gpu.program.types import DeviceFacts, Tiles
from vgg16gpu.runtime.engine import Engine

OWN, NEAREST = "own", "nearest"
SECONDS = 0.1  # of a turn
BOUND_OF_ONE, BOUND = 1.08, 1.03  # a table decides more of one image than of several


@dataclass(frozen=True)
class Row:
    """One network: medians of all turns in seconds, and in each round the nearest table's time by the own one's."""

    model: str
    precision: str
    batch: int
    own_s: float
    nearest_s: float
    ratios: Sequence[float]

    @property
    def bound(self) -> float:
        """What the ratio may be."""
        return BOUND_OF_ONE if self.batch == 1 else BOUND

    @property
    def ratio(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each network; 1 where a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--own", type=Path, required=True, metavar="TABLE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default=",".join(PRECISIONS))
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=5, help="of four turns: own, nearest, nearest, own")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    opened = open_device(options.device)
    try:
        where, facts = environment(opened.device), opened.device.facts
    finally:
        opened.device.close()
    tables = tables_of(facts, options.own)
    batches = [int(word) for word in options.batch.split(",")]
    rows = []
    for model in options.models:
        for precision in options.precision.split(","):
            for row in measure(model, options.device, precision, batches, tables, options.rounds):
                rows.append(row)
                mark = "" if row.ratio <= row.bound else f"  ABOVE {row.bound}"
                spread = f"{min(row.ratios):.3f} to {max(row.ratios):.3f}"
                times = f"{1e3 * row.own_s:.4g} ms, nearest {1e3 * row.nearest_s:.4g}"
                print(f"{row.model} {precision} x{row.batch}: {times}, {row.ratio:.3f} ({spread}){mark}", flush=True)
    if options.output:
        what = "networks with this card's own table of tiles and with the nearest card's, back to back, in turns"
        content = {"what": what, "environment": where, "problems": {name: len(table) for name, table in tables.items()}}
        found = [asdict(row) | {"ratio": row.ratio, "bound": row.bound} for row in rows]
        write(options.output, {**content, "nets": found})
    return int(any(row.ratio > row.bound for row in rows))


def tables_of(facts: DeviceFacts, own: Path) -> dict[str, Tiles]:
    """Both tables. Raises InputError where the own one is not this card's."""
    mine = tuned.read(own, facts.name)
    if not mine:
        raise InputError(f"{own} has no tiles of {facts.name}; run `python -m vgg16gpu tune --table {own}` there")
    kin = Kin(facts.compute_capability, facts.multiprocessors)
    return {OWN: mine, NEAREST: tuned.nearest(kin, without=facts.name)}


def measure(
    model: Path, device: str, precision: str, batches: Sequence[int], tables: Mapping[str, Tiles], rounds: int
) -> Iterator[Row]:
    """A row for each batch. Raises what Engine raises."""
    with ExitStack() as stack:
        engines = {}
        for name, tiles in tables.items():
            with mock.patch.object(tuned, "table", return_value=tiles):
                engines[name] = Engine(model, device=device, precision=precision, batch=tuple(batches))
            stack.enter_context(engines[name])
        pictures = sample_inputs(tuple(engines[OWN].program.input.shape[1:]))
        for batch in batches:
            x = np.resize(pictures, (batch, *pictures.shape[1:]))
            own, nearest = (EngineContender(engines[name], x, precision) for name in (OWN, NEAREST))
            for contender in (own, nearest):
                contender.scores()
            runs = max(1, int(SECONDS / one_run(own)[Method.BACK_TO_BACK]))
            turns = [[_turn(contender, runs) for contender in (own, nearest, nearest, own)] for _ in range(rounds)]
            yield Row(
                model=model.stem,
                precision=precision,
                batch=batch,
                own_s=statistics.median(turn[place] for turn in turns for place in (0, 3)),
                nearest_s=statistics.median(turn[place] for turn in turns for place in (1, 2)),
                ratios=[(second + third) / (first + last) for first, second, third, last in turns],
            )


def _turn(contender: EngineContender, runs: int) -> float:
    (seconds,) = contender.measure(Method.BACK_TO_BACK, runs)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
