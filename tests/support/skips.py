"""`--require-packages`: fail what is skipped for anything but a missing GPU.

Tests of torch, say, are skipped where torch is not installed. Where it must be installed, a run that skips them all
would pass and guard nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

OPTION: Final = "--require-packages"


def add_option(parser: pytest.Parser) -> None:
    """Add --require-packages."""
    text = "fail tests instead of skipping them; those marked gpu may be skipped"
    parser.addoption(OPTION, action="store_true", help=text)


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report's skip into a failure that tells the reason of the skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{OPTION}: {_reason(report)}"


def write_reasons(reporter: pytest.TerminalReporter) -> None:
    """Write a line for each reason of skips, with its count; the most frequent one comes first."""
    for reason, count in Counter(map(_reason, reporter.stats.get("skipped", []))).most_common():
        reporter.write_line(f"{count} skipped: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ").partition("\n")[0]
