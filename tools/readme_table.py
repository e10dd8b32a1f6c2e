"""Write the tables of results from recorded ones: README's, its chart, and those of three pages in docs/.

What lies between the markers has no other source than JSON files in testbench/results. --check writes nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import result_tables
from result_tables import (
    load,
    lpips_short_table,
    lpips_table,
    plain_table,
    report_table,
    row,
    short_table,
    short_text,
    sweep_table,
    whole_table,
    whole_text,
)
from speedup_chart import write_chart

from vgg16gpu.bench.records.record import Content, read

__all__ = ["ROOT", "load", "row", "settle"]  # what tools/lab_tables.py shares

ROOT = Path(__file__).resolve().parents[1]
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
KERNELS, LOSSES = ROOT / "docs" / "kernels.md", ROOT / "docs" / "losses.md"
CARDS = ("bench-h200.json", "bench-h100.json")  # README has the first
OTHERS = ("bench-h200-244.json",)  # for docs/performance.md: of another size
LPIPS = "lpips-h200.json"  # a step of LPIPS, for README and docs/losses.md
PLAIN = "plain-h200.json"  # the plain path, for docs/kernels.md
PUBLIC = "public-api-h200.json"  # what a caller of Engine.run gets
CHART = "chart-h200.png"
BEGIN, END = "<!-- results: begin (tools/readme_table.py) -->\n", "<!-- results: end -->\n"


def records(names: Sequence[str]) -> list[Content]:
    """The benchmarks of these names that there are."""
    return [read(path) for name in names if (path := result_tables.RESULTS / name).exists()]


def short() -> str:
    """Return README's block: a table, and what is to be known of it."""
    (bench,) = records(CARDS[:1])
    public = load(PUBLIC) if (result_tables.RESULTS / PUBLIC).exists() else None
    return f"{short_table(bench, public)}\n{short_text(bench, public)}\n{lpips_short_table(load(LPIPS))}"


def whole() -> str:
    """docs/performance.md's: everything."""
    parts = [f"{whole_table(bench)}\n{whole_text(bench)}" for bench in records((*CARDS, *OTHERS))]
    if swept := records(sorted(path.name for path in result_tables.RESULTS.glob("sweep-*.json"))):
        parts.append(sweep_table(swept))
    return "\n".join([*parts, report_table(load("testbench-h200.json"), load("testbench-cpu.json"))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages and, with matplotlib, the chart; with --check return 1 when a page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    if not check and importlib.util.find_spec("matplotlib") is not None:
        write_chart(records(CARDS)[0], result_tables.RESULTS / CHART)
    blocks = {
        README: short(),
        PERFORMANCE: whole(),
        KERNELS: plain_table(load(PLAIN)),
        LOSSES: lpips_table(load(LPIPS)),
    }
    return max(_write(page, block, check=check) for page, block in blocks.items())


def _write(page: Path, block: str, *, check: bool) -> int:
    """Put the block between the page's markers."""
    head, rest = page.read_text().split(BEGIN)
    tail = rest.split(END)[1]
    return settle(page, head + BEGIN + block + END + tail, "tools/readme_table.py", check=check)


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
