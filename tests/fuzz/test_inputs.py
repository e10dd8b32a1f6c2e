"""Hostile inputs: the mutators for some seconds, `infer` on a folder of them, and the fuzzer's own eyes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.fuzz import inputs
from tests.fuzz.inputs import AGREES, READ, examine, input_case, run, seeds
from tests.fuzz.worker import CRASH, REFUSED, WRONG
from tests.support.hostile_arrays import SHAPE
from vgg16gpu.cli import cli
from vgg16gpu.errors import InputError

REFUSED_SEEDS = {"signed.tif"}
READ_SEEDS = {"grey8.tif", "white16.tif", "colours.tif"}  # Pillow has no reader of white at zero


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(inputs.ROOT)
    return tmp_path


def test_seeds_are_whole(folder: Path) -> None:
    compared = (".npy", ".npz", ".txt", ".tif", ".list")
    for number, name in enumerate(seeds()):
        found = examine(number, 0, folder)
        usual = AGREES if name.endswith(compared) and name not in READ_SEEDS else READ
        assert found.verdict == (REFUSED if name in REFUSED_SEEDS else usual), (name, found)


@pytest.mark.parametrize(
    ("first", "cases"), [(0, 80), pytest.param(80, 20_040, marks=pytest.mark.slow(reason="more of the same"))]
)
def test_no_hostile_input_does_harm(tmp_path: Path, first: int, cases: int) -> None:
    record = tmp_path / "fuzz.json"
    arguments = ["--first", str(first), "--cases", str(cases), "--seed", "4", "--jobs", "1"]
    code = run([*arguments, "--keep", str(tmp_path / "kept"), "--output", str(record)])
    found = json.loads(record.read_text())
    assert found["failures"] == []
    assert code == 0
    assert found["cases"] == cases
    for verdict in (REFUSED, READ, AGREES):
        assert found["verdicts"][verdict] > cases // 20


def test_infer_has_a_row_for_each_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases in one run: each file has its own rows, an answer or why there is none, in the order of the files."""
    monkeypatch.chdir(tmp_path)
    files = []
    for number in range(2000, 2000 + 3 * len(seeds())):
        _, data, name = input_case(number, 7)
        if name.endswith((".npy", ".npz", ".txt", ".tif")):
            files.append(f"{number}-{name}")
            Path(files[-1]).write_bytes(data)
    done = CliRunner().invoke(cli, ["infer", *files, "--model", "digits", "--device", "cpu", "--output", "rows.csv"])
    assert (done.exit_code, done.exc_info[0] if done.exc_info else None) == (1, SystemExit), done.output
    with Path("rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(dict.fromkeys(row["input"].partition("[")[0] for row in rows)) == files
    assert all(bool(row["error"]) != bool(row["class_1"]) for row in rows)
    for file in files:
        if file.endswith((".npy", ".txt")):  # behind an error comes nothing, and no sample comes twice
            names = [row["input"] for row in rows if row["input"].partition("[")[0] == file]
            assert len(set(names)) == len(names) <= 2


def crash(*_: object) -> object:
    raise KeyError("key")


def refuse(*_: object) -> object:
    raise InputError("it is refused")


def refuse_at_length(*_: object) -> object:
    raise InputError("it is refused " * 1000)


def empty(*_: object) -> Any:
    return []


@pytest.mark.parametrize(
    ("name", "attribute", "reader", "verdict", "reason"),
    [
        ("one.npy", "each_sample", crash, CRASH, "KeyError at test_inputs.py"),
        ("one.npy", "each_sample", empty, WRONG, "neither a sample"),
        ("one.npy", "each_sample", lambda name, _: [(name, np.zeros(SHAPE, np.float32))], WRONG, "other num"),
        ("one.npy", "each_sample", lambda name, _: [(f"{name}x", np.zeros(1))], WRONG, "a sample that others"),
        ("float.npy", "each_sample", lambda name, _: [(name, InputError("no"))], WRONG, "samples that others"),
        ("grey12.tif", "decode", lambda *_: np.zeros((4, 6, 1), np.uint8), WRONG, "other grey"),
        ("grey12.tif", "decode", crash, CRASH, "KeyError"),
        ("zeros.list", "read_names", lambda _: ["/", "nothing"], WRONG, "names between zero bytes"),
        ("lines.list", "read_names", lambda _: Path(_).read_text().splitlines()[:1], WRONG, "another number of names"),
        (
            "lines.list",
            "read_names",
            lambda _: [line.upper() for line in Path(_).read_text().splitlines()],
            WRONG,
            "a name that is no",
        ),
        ("lines.list", "read_names", refuse, REFUSED, "it is refused"),
        ("lines.list", "read_names", refuse_at_length, WRONG, "a message of more"),
        ("rows.csv", "read_scores", lambda _: (["a"], np.zeros((2, 2), np.float32)), WRONG, "other scores"),
        ("run.record", "read_benchmark", crash, CRASH, "KeyError"),
    ],
)
def test_the_fuzzer_sees(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    attribute: str,
    reader: Callable[..., object],
    verdict: str,
    reason: str,
) -> None:
    monkeypatch.setattr(inputs, attribute, reader)
    found = examine(list(seeds()).index(name), 0, folder)
    assert found.verdict == verdict, found
    assert found.reason.startswith(reason)
