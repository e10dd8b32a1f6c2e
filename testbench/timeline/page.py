"""Timelines as one page that needs nothing else: a row for each multiprocessor, a bar for each block (`page.html`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from testbench.timeline.measure import Launch, Timeline
from testbench.timeline.summary import COLUMNS, Line, lines


def page(title: str, timelines: Sequence[Timeline]) -> str:
    """The page. title: the model's name."""
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), sections="".join(map(_section, timelines)))


def _section(timeline: Timeline) -> str:
    silent = [escape(one.kernel) for one in timeline.launches if one.blocks is None]
    note = f" Of these nothing is known: {', '.join(silent)}." if silent else ""
    text = json.dumps(_data(timeline), separators=(",", ":")).replace("<", "\\u003c")
    head = "".join(f"<th>{name}</th>" for name in ("launch", "blocks", *COLUMNS))
    rows = "".join(map(_row, lines(timeline)))
    return f"""<section>
<h2>{escape(timeline.precision)}, batch {timeline.batch}</h2>
<p>{escape(timeline.device)}. {timeline.span_us:.1f} us from the first block to the last, with stamps;
{timeline.plain_us:.1f} us without, launches included.{note}</p>
<p><label>Zoom <input type="range" min="1" max="20" step="0.25" value="1"></label> <output></output></p>
<div class="view"><canvas></canvas></div>
<script type="application/json">{text}</script>
<p>Microseconds: when the first block began, when the last ended, and from the end of the launch before to the first
operands; then medians of blocks, and from the median end to the last.</p>
<table><tr>{head}</tr>{rows}</table>
</section>
"""


def _data(timeline: Timeline) -> dict[str, Any]:
    """What the script draws. A block is the multiprocessor, then its times in the order of `stamps.EVENTS`."""
    found = [(f"{one.label} ({one.kernel})", _blocks(one)) for one in timeline.launches if one.blocks is not None]
    return {
        "span": round(timeline.span_us, 3),
        "places": sorted({block[0] for _, blocks in found for block in blocks}),
        "launches": [{"label": label, "blocks": blocks} for label, blocks in found],
    }


def _blocks(launch: Launch) -> list[list[Any]]:
    assert launch.blocks is not None
    return [
        [place, *(None if math.isnan(time) else round(time, 3) for time in row)]
        for place, row in zip(launch.blocks.where.tolist(), launch.blocks.times.tolist(), strict=True)
    ]


def _row(line: Line) -> str:
    numbers = "".join(f"<td>{'' if math.isnan(each) else f'{each:.2f}'}</td>" for each in line.numbers)
    return f"<tr><td>{escape(line.label)}</td><td>{line.blocks}</td>{numbers}</tr>"
