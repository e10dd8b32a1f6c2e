"""A timeline in numbers: a line for each launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from testbench.timeline.measure import Launch, Timeline
from vgg16gpu.bench.records.record import Content

COLUMNS: Final = ("begun", "done", "gap", "waiting", "summing", "exchanging", "storing", "tail")
_BEGUN, _OPERANDS, _SUMS, _EXCHANGED = range(4)


@dataclass(frozen=True)
class Line:
    """Of one launch, microseconds. NaN where nothing is known.

    begun: of its first block; done: of its last. gap: from the end of the launch before to its first block's operands:
    below 0 where they overlap. waiting, summing, exchanging, storing: medians of its blocks, to their operands, to
    their sums, until the sums of others are there, and to the end. tail: from the median end of blocks to the last.
    """

    label: str
    blocks: int
    begun: float
    done: float
    gap: float
    waiting: float
    summing: float
    exchanging: float
    storing: float
    tail: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """In the order of COLUMNS."""
        return tuple(getattr(self, name) for name in COLUMNS)


def lines(timeline: Timeline) -> list[Line]:
    """Those of the launches that tell."""
    found: list[Line] = []
    before = 0.0
    for launch in timeline.launches:
        if launch.blocks is not None:
            found.append(_line(launch, before))
            before = found[-1].done
    return found


def content(timelines: Sequence[Timeline]) -> Content:
    """All of it as JSON, without the blocks."""
    return {
        "environment": timelines[0].environment,
        "timelines": [
            {
                "precision": timeline.precision,
                "batch": timeline.batch,
                "span_us": timeline.span_us,
                "plain_us": timeline.plain_us,
                "launches": [
                    {
                        "label": line.label,
                        "blocks": line.blocks,
                        **{
                            name: None if math.isnan(number) else number
                            for name, number in zip(COLUMNS, line.numbers, strict=True)
                        },
                    }
                    for line in lines(timeline)
                ],
            }
            for timeline in timelines
        ],
    }


def _line(launch: Launch, before: float) -> Line:
    assert launch.blocks is not None
    times = launch.blocks.times
    ends = np.nanmax(times, axis=1)
    begun, operands, sums, exchanged = (times[:, event] for event in (_BEGUN, _OPERANDS, _SUMS, _EXCHANGED))
    ready = np.where(np.isnan(operands), begun, operands)
    last = np.fmax(sums, exchanged)
    return Line(
        launch.label,
        len(times),
        float(np.nanmin(begun)),
        float(ends.max()),
        float(np.nanmin(ready)) - before,
        _median(ready - begun),
        _median(sums - ready),
        _median(exchanged - sums),
        _median(ends - last),
        float(ends.max() - np.median(ends)),
    )


def _median(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")
