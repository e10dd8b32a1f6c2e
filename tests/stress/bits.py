"""The same bits, run after run, at every position of a batch and in an engine that is built anew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.synthetic import TESTBENCH_SEED, structured_images
from vgg16gpu.runtime.engine import Engine

BATCHES = (1, 8)

COLUMNS = ("precision", "batch", "runs", "other bits", "at other positions", "in a new engine", "digest")


@dataclass(frozen=True)
class Bits:
    """One precision at one batch size; each count is of runs, or images at a position, with other bits."""

    precision: str
    batch: int
    runs: int
    differing_runs: int
    positions: int  # images times positions
    differing_positions: int
    new_engine_differs: bool
    second_passes: int
    digest: str  # SHA-256 of the scores, for comparison between processes

    @property
    def passed(self) -> bool:
        """No bit has changed."""
        return not (self.differing_runs or self.differing_positions or self.new_engine_differs)

    def cells(self) -> tuple[object, ...]:
        """A row under COLUMNS."""
        return (
            self.precision,
            self.batch,
            self.runs,
            self.differing_runs,
            f"{self.differing_positions} of {self.positions}",
            "OTHER" if self.new_engine_differs else "the same",
            self.digest[:16],
        )


def measure(model: Path, device: str, precision: str, runs: int) -> Iterator[Bits]:
    """Both batch sizes of one precision, from pictures of bytes."""
    options: dict[str, Any] = {"device": device, "precision": precision, "batch": BATCHES}
    with Engine(model, **options) as engine:
        x = pictures(engine, max(BATCHES))
        found = [_check(engine, precision, x[:batch], runs) for batch in BATCHES]
    with Engine(model, **options) as engine:
        for bits in found:
            digest = _digest(_scores(engine, x[: bits.batch]))
            yield replace(bits, new_engine_differs=digest != bits.digest)


def pictures(engine: Engine, count: int) -> Pixels:
    """Pictures of bytes in the engine's shape."""
    _, channels, height, width = engine.program.input.shape
    square = structured_images(count, max(height, width), TESTBENCH_SEED)
    return square[:, :height, :width, np.arange(channels) % 3]


def _check(engine: Engine, precision: str, x: Pixels, runs: int) -> Bits:
    before = engine.second_passes
    first = _scores(engine, x)
    second_passes = engine.second_passes - before
    differing_runs = sum(_scores(engine, x).tobytes() != first.tobytes() for _ in range(runs))
    turned = [np.roll(_scores(engine, np.roll(x, by, axis=0)), -by, axis=0) for by in range(len(x))]
    differing = sum(a.tobytes() != b.tobytes() for y in turned for a, b in zip(y, first, strict=True))
    return Bits(
        precision,
        len(x),
        runs,
        differing_runs,
        positions=len(x) ** 2,
        differing_positions=differing,
        new_engine_differs=False,
        second_passes=second_passes,
        digest=_digest(first),
    )


def _scores(engine: Engine, x: Pixels) -> Array:
    outputs = engine.run(x)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _digest(scores: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest()
