"""Makefile: what its targets run, told by a python that only writes down how it was called."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(tmp_path):
    """Run a target in an empty folder; the calls of python."""
    log, stub = tmp_path / "log", tmp_path / "stub"
    stub.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    stub.chmod(0o755)
    (tmp_path / "work" / "models").mkdir(parents=True)

    def run(target):
        log.write_text("")
        arguments = ["make", "--file", ROOT / "Makefile", target, "VENV=", f"PYTHON={stub}"]
        subprocess.run(arguments, cwd=tmp_path / "work", capture_output=True, check=True)
        return [call.removeprefix("-m vgg16gpu ") for call in log.read_text().splitlines()]

    run.folder = tmp_path / "work"
    return run


def test_demo_is_one_program(make):
    """tests/system/test_demo.py tells what it does."""
    assert make("demo") == ["testbench/demo.py"]
    assert (ROOT / "testbench" / "demo.py").is_file()


def test_bench_writes_a_file_that_git_ignores(make):
    assert make("bench") == ["bench --output bench.json"]
    assert "/bench.json" in (ROOT / ".gitignore").read_text().splitlines()


def test_tests_run_side_by_side_and_no_case_is_in_two_targets(make):
    common = "-m pytest --workers auto"
    assert make("test") == [f"{common} --cases representative"]
    assert make("test-others") == [f"{common} --cases others"]
    assert make("test-all") == [common]
    assert make("test-gpu") == [f"{common} -m gpu --require-gpu"]


def test_lint_runs_this_python_alone(make):
    assert len(make("lint")) == 4  # ruff twice, mypy, import-linter: none from PATH
