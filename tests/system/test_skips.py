"""`pytest --require-packages`: skipped tests and files fail, and those marked gpu may be skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.fixture
def absent():
    return pytest.importorskip("a_package_that_nobody_has")

def test_well(): pass

def test_needs_the_package(absent): pass

def test_looks_for_it(): pytest.importorskip("another_package_that_nobody_has")

@pytest.mark.xfail
def test_known_to_fail(): raise AssertionError

@pytest.mark.gpu
def test_on_a_card(absent): pass
"""
WHOLE_FILE = 'import pytest\n\npytest.importorskip("a_package_that_nobody_has")\n\ndef test_never_seen(): pass\n'


def counts(folder: Path, text: str, *arguments: str) -> tuple[int, dict[str, int], str]:
    """Return the exit status, the numbers of pytest's closing line, and all that was printed."""
    (folder / "test_planted.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False)
    found = re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1].partition(" in ")[0])
    return done.returncode, {name: int(number) for number, name in found}, done.stdout


def test_without_the_option_they_are_skipped(tmp_path: Path) -> None:
    status, numbers, _ = counts(tmp_path, TESTS)
    assert (status, numbers) == (0, {"passed": 1, "skipped": 3, "xfailed": 1})


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "several"])
def test_with_it_they_fail_and_say_what_is_missing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    if workers:
        pytest.importorskip("xdist")
    status, numbers, printed = counts(tmp_path, TESTS, "--require-packages", *workers)
    assert status == 1
    assert (numbers.get("passed"), numbers.get("failed"), numbers.get("error")) == (1, 1, 1)
    assert (numbers.get("skipped"), numbers.get("xfailed")) == (1, 1)
    for name in ("a_package_that_nobody_has", "another_package_that_nobody_has"):
        assert re.search(rf"--require-packages: .*could not import '{name}'", printed)


def test_a_file_that_is_skipped_whole_fails(tmp_path: Path) -> None:
    assert counts(tmp_path, WHOLE_FILE)[0] == 5  # pytest's status where no test ran
    status, numbers, printed = counts(tmp_path, WHOLE_FILE, "--require-packages")
    assert (status, numbers) == (2, {"error": 1})
    assert re.search(r"--require-packages: .*could not import 'a_package_that_nobody_has'", printed)


def test_ci_ends_with_tests_that_must_run() -> None:
    """Its closing line is of tests of torch, which may not be skipped; no failure of a step is passed over."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert not [line for line in lines if "||" in line or line.endswith("&")]
    install, run = lines[-2:]
    assert re.match(r'"\$venv/bin/python" -m pip install .*torch==', install)
    assert re.match(r'"\$venv/bin/python" -m pytest .*--require-packages "\${torch_tests\[@\]}"', run)
    assert "torch_tests=(" in lines
    assert "    tests/pytorch" in lines
