"""`infer` where each device has a process, as each of several cards has: the rows of one device, whoever is killed."""

import csv
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.support import faulty_card
from tests.support.later import later
from tests.support.ray_here import ROOT
from tests.support.small_photos import small_photos
from vgg16gpu.cli import cli
from vgg16gpu.devices.cuda.probe import probe_driver

COUNT = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_photos(tmp_path_factory.mktemp("photos"), COUNT)


@pytest.fixture(autouse=True)
def cards(monkeypatch):
    faulty_card.on_cpu(monkeypatch)


def infer(*arguments):
    return CliRunner().invoke(cli, [*map(str, ("infer", "--model", "digits", "--batch", 2, *arguments))])


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "alone.csv"
    assert infer(folder, "--device", "cpu", "--output", path).exit_code == 0
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["killed", *later("as killed", "error")])
def test_a_process_that_fails_is_told(folder, alone, tmp_path, monkeypatch, kind):
    faulty_card.plant(monkeypatch, kind, 1, tmp_path / "fault")
    path = tmp_path / "rows.csv"
    result = infer(folder, "--devices", "cpu:2", "--output", path, "--json")
    assert result.exit_code == 0, result.output
    problem = "process of cpu was ended by SIGKILL" if kind == "killed" else "an illegal address was met"
    assert f"is taken out, and 1 of 2 devices go on with its work: {problem}" in result.stderr
    report = json.loads(result.stdout)
    assert sorted(share["problem"] for share in report["devices"]) == ["", problem]
    assert sum(share["images"] for share in report["devices"]) == COUNT
    assert report["rates"]["engine_images_per_s"] > 0
    assert path.read_bytes() == alone


@pytest.mark.slow(reason="test_infer_shards.py has shards of one device")
def test_shards(folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, devices in (("one", ("--device", "cpu")), ("cards", ("--devices", "cpu:2"))):
        done = infer(folder, *devices, "--output", tmp_path / name, "--shard", "0/1", "--shard-size", 12)
        assert done.exit_code == 0, done.output
    assert parquet.read_table(tmp_path / "one").equals(parquet.read_table(tmp_path / "cards"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["stray", "killed"])
def test_a_card_that_fails_costs_itself_alone(tmp_path, monkeypatch, kind):
    driver = probe_driver()
    if driver is None or len(driver.gpus) < 2:
        pytest.skip("there is one GPU; this needs two")
    photos = small_photos(tmp_path / "photos", 2000)
    command = [sys.executable, "-m", "vgg16gpu", "infer", photos, "--model", "digits", "--batch", "4", "--json"]
    whole = tmp_path / "whole.csv"
    subprocess.run([*map(str, (*command, "--device", "cuda:0", "--output", whole))], check=True, stdout=subprocess.PIPE)
    faulty_card.plant(monkeypatch, kind, 3, tmp_path / "fault")
    code = (
        "import os, subprocess, sys; from vgg16gpu.cluster.cards import process\n"
        f"process.CHILD = {faulty_card.__name__!r}\n"
        "from click.testing import CliRunner; from vgg16gpu.cli import cli\n"
        "result = CliRunner().invoke(cli, sys.argv[1:]); print(result.stderr, file=sys.stderr)\n"
        "assert not {'pycuda', 'cuda.bindings'} & set(sys.modules), 'there may be a CUDA context'\n"
        "sys.exit(result.exit_code)\n"
    )
    rows = tmp_path / "rows.csv"
    arguments = [*map(str, (*command[3:], "--devices", "all", "--output", rows))]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("is taken out, and ") == 1
    assert rows.read_bytes() == whole.read_bytes()
    assert not [row for row in csv.DictReader(rows.read_text().splitlines()) if row["error"]]
