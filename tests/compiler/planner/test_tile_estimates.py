"""The estimated times of tiles beside those that were recorded, layer by layer: testbench/results/sweep-*.json."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.compiler.lowering.conv.conv_wgmma_tiles import CYCLE_SECONDS, ConvProblem, LargeTile, SmallTile, Tile
from vgg16gpu.program.values import Element

RESULTS = Path(__file__).parents[3] / "testbench" / "results"
SWEEPS = sorted(RESULTS.glob("sweep-*-fp16.json"))
KERNEL = re.compile(r"(conv_wgmma|conv_wgmma_small)<([0-9,]+)>")
LAYER = re.compile(r"conv 3x3 (\d+)->(\d+) \+ relu( \+ pool)?$")


def tile_of(kernel: str, numbers: list[int]) -> Tile:
    """From a kernel's macros, in the order of `Cut.kernel`."""
    _, _, _, rows, halo_stages, _, *rest = numbers
    if kernel == "conv_wgmma":
        _, _, flat_pitch, pair_tiles = rest
        return LargeTile(rows, flat_pitch, bool(pair_tiles), halo_stages)
    splits, exchange, taps, blocks_per_sm = rest
    return SmallTile(rows, splits, exchange, blocks_per_sm, halo_stages, taps)


def layers(record: dict[str, Any]) -> Iterator[tuple[ConvProblem, Tile, float]]:
    """Problem, tile and seconds of each layer that one of both kernels computed."""
    for run in record["batches"]:
        side = record["model"]["input_shape"][1]
        for layer in run["layers"]:
            found = KERNEL.fullmatch(layer["kernel"])
            if found:
                named = LAYER.fullmatch(layer["label"])
                assert named, layer["label"]
                channels, outputs, pool = int(named[1]), int(named[2]), named[3] is not None
                problem = ConvProblem(run["batch"], side, side, channels, outputs, Element.F16, Element.F16, pool)
                tile = tile_of(found[1], [int(number) for number in found[2].split(",")])
                yield problem, tile, layer["median_s"]
            side //= 2 if layer["label"].endswith("pool") else 1


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_estimates_are_near_what_was_recorded(path: Path) -> None:
    record = json.loads(path.read_text())
    multiprocessors = record["environment"]["device"]["multiprocessors"]
    ratios = [
        seconds / (tile.cycles(problem, multiprocessors) * CYCLE_SECONDS) for problem, tile, seconds in layers(record)
    ]
    assert len(ratios) == 11 * len(record["batches"])
    assert statistics.median(ratios) == pytest.approx(1, abs=0.05)
    near = [0.87 <= ratio <= 1.15 for ratio in ratios]
    assert sum(near) >= 0.95 * len(near)


def test_there_are_records() -> None:
    assert SWEEPS
