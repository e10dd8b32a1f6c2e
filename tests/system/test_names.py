"""Files of any name, with bytes that are no UTF-8, line breaks, escape sequences: in every output and every locale."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu.devices.cpu.compiler import LibraryUnit, compile_units
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import digit_sample

NAMES = sorted([b"bad\xff.png", "\U0001f600.png".encode(), b"new\nline\r.png", b"quo\"te,'.png", b"\x1b[31mred.png"])
BROKEN = b"broken\xfe\n.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("names")
    for name in NAMES:
        shutil.copy(digit_sample(), os.fsencode(path) + b"/" + name)
    return path


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """The folder's scores in every form."""
    target = tmp_path_factory.mktemp("written")
    for suffix in ("csv", "json", "npz", "npy", "txt"):
        arguments = ["infer", folder, "--model", "digits", "--device", "cpu", "--output", target / f"out.{suffix}"]
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert result.exit_code == 0, result.output
    return target


def base_names(paths) -> list[bytes]:
    return sorted(os.path.basename(os.fsencode(path)) for path in paths)  # noqa: PTH119


def test_csv_holds_the_very_bytes(written):
    assert b"/bad\xff.png" in (written / "out.csv").read_bytes()
    with (written / "out.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        header, *rows = csv.reader(file)
    assert base_names(row[0] for row in rows) == NAMES
    assert {len(row) for row in rows} == {len(header)} == {22}


def test_npz_gives_the_names_back(written):
    with np.load(written / "out.npz", allow_pickle=False) as archive:
        assert base_names(map(str, archive["names"])) == NAMES
        for other in (np.load(written / "out.npy"), np.loadtxt(written / "out.txt")):
            np.testing.assert_allclose(archive["scores"], other, rtol=1e-6)


OLD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # names, stdout and stderr are all ASCII


def test_screens_show_every_name_on_a_line_of_its_own(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "names")
    Path(os.fsdecode(os.fsencode(tmp_path / "names") + b"/" + BROKEN)).write_text("no image")
    command = ["infer", "names", "--model", "digits", "--device", "cpu", "--top", "1"]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **OLD}
    done = subprocess.run(
        [sys.executable, "-m", "vgg16gpu", *command], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert rb"'names/broken\xfe\n.png' is not a readable image" in done.stderr
    rows = [line for line in done.stdout.decode().splitlines() if "names/" in line]
    assert len(rows) == len(NAMES)
    for part in (r"bad\xff.png", r"new\nline\r.png", r"\x1b[31mred.png", r"\xf0\x9f"):
        assert any(part in row for row in rows), part


def test_a_model_of_any_name(tmp_path):
    path = tmp_path / "m\udcfe\n'.onnx"
    shutil.copy(digits_model(), path)
    result = CliRunner().invoke(cli, ["infer", str(digit_sample()), "--model", str(path), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert r"m\xfe\n'.onnx (probability" in result.stdout
    path.write_bytes(b"none")
    for command in (("info", path), ("infer", digit_sample(), "--model", path)):
        result = CliRunner().invoke(cli, list(map(str, command)))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert r"m\xfe\n'.onnx: is not an ONNX model" in result.stderr


def test_kernels_in_a_folder_of_any_name(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "vgg16gpu")
    folder = tmp_path / 'quo"te\n\udcff'
    folder.mkdir()
    monkeypatch.setenv("VGG16GPU_CACHE", str(folder / "cache"))
    source = folder / "own.cu"
    source.write_text('#include "common.cuh"\nextern "C" __global__ void own(float* y) { y[0] = 1; }\n')
    (library,) = compile_units([LibraryUnit(str(source))], "poison", 1).values()
    assert library.path.is_file()
    assert [record.getMessage() for record in caplog.records] == [f"compiling {source} for the CPU"]
