"""`pytest --again N`: each test N times, whatever its other parameters are."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = "tests/pictures/loading/test_pace.py"


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, FILE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("count", [1, 3])
def test_each_test_comes_so_often(count: int) -> None:
    once, again = collected(), collected("--again", str(count))
    assert len(set(again)) == len(again) == count * len(once)
    names = [name.partition("[")[0] for name in once]
    assert Counter(name.partition("[")[0] for name in again) == {name: count * n for name, n in Counter(names).items()}
