"""`--require-packages`: fail what is skipped for anything but a missing GPU.

Tests of torch, say, are skipped where torch is not installed. Where it must be installed, a run that skips them all
would pass and guard nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

OPTION: Final = "--require-packages"
_OUTPUT: Final = "left_out"
_TOLD: Final = pytest.StashKey[Counter[str]]()


def add_option(parser: pytest.Parser) -> None:
    """Add --require-packages."""
    text = "fail tests instead of skipping them; those marked gpu may be skipped"
    parser.addoption(OPTION, action="store_true", help=text)


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report's skip into a failure that tells the reason of the skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{OPTION}: {_reason(report)}"


def tell_of_worker(config: pytest.Config, reason: str, count: int) -> None:
    """Count more tests that a worker of pytest-xdist leaves out: to skip one takes 3 ms, and there are thousands."""
    counts = config.workeroutput.setdefault(_OUTPUT, {})  # type: ignore[attr-defined]
    counts[reason] = counts.get(reason, 0) + count


def hear_of_worker(config: pytest.Config, output: Mapping[str, Any]) -> None:
    """Store what a worker has told; each leaves out the same."""
    config.stash[_TOLD] = Counter(output.get(_OUTPUT, {}))


def write_reasons(reporter: pytest.TerminalReporter) -> None:
    """Write a line for each reason of skips, with its count; the most frequent one comes first."""
    skipped = Counter(map(_reason, reporter.stats.get("skipped", [])))
    for reason, count in (skipped + reporter.config.stash.get(_TOLD, Counter())).most_common():
        reporter.write_line(f"{count} skipped: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ").partition("\n")[0]
