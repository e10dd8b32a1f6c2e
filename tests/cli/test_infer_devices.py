"""`infer --devices`: the rows of one device, and what each of several has done."""

import csv
import json

import pytest
from click.testing import CliRunner

from tests.support.small_photos import small_photos
from vgg16gpu.cli import cli
from vgg16gpu.errors import KernelError
from vgg16gpu.runtime.frames import Frames

COUNT = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_photos(tmp_path_factory.mktemp("photos"), COUNT)


def infer(*arguments):
    return CliRunner().invoke(cli, [*map(str, ("infer", "--model", "digits", "--batch", 2, *arguments))])


def test_rows_are_those_of_one_device(folder, tmp_path):
    alone = infer(folder, "--device", "cpu", "--output", tmp_path / "alone.csv")
    shared = infer(folder, "--devices", "cpu:3", "--output", tmp_path / "shared.csv")
    assert (alone.exit_code, shared.exit_code) == (0, 0), shared.output
    assert (tmp_path / "shared.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
    shares = [line for line in shared.stdout.splitlines() if line.startswith("  cpu: as asked: ")]
    assert len(shares) == 3
    assert "Device: " in shared.stdout


def test_a_device_that_fails_is_told(folder, tmp_path, monkeypatch):
    receive, devices, broken = Frames.receive, [], []

    def faulty(self, *arguments):
        """Breaks whichever device is the first with a second batch: one may get only one."""
        devices.append(self._device)
        if not broken and devices.count(self._device) > 1:
            broken.append(self._device)
        if broken and self._device is broken[0]:
            raise KernelError("an illegal address was met")
        return receive(self, *arguments)

    monkeypatch.setattr(Frames, "receive", faulty)
    path = tmp_path / "rows.csv"
    result = infer(folder, "--devices", "cpu:2", "--output", path, "--json")
    assert result.exit_code == 0, result.output
    assert "is taken out, and 1 of 2 devices go on with its work: an illegal address was met" in result.stderr
    shares = json.loads(result.stdout)["devices"]
    assert sorted(share["problem"] for share in shares) == ["", "an illegal address was met"]
    assert sum(share["images"] for share in shares) == COUNT
    assert [row["error"] for row in csv.DictReader(path.read_text().splitlines())] == [""] * COUNT


def test_one_device_by_that_option(folder):
    report = json.loads(infer(folder, "--devices", "cpu:1", "--json").stdout)
    assert "devices" not in report
    assert len(report["inputs"]) == COUNT


def test_resuming_shares_what_is_left(folder, tmp_path):
    path = tmp_path / "rows.csv"
    assert infer(folder, "--devices", "cpu:2", "--output", path).exit_code == 0
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:12]))
    record = path.with_name("rows.csv.run.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "finished": None, "rows": None, "bytes": None, "crc32": None}))
    assert infer(folder, "--devices", "cpu:2", "--output", path, "--resume").exit_code == 0
    assert path.read_bytes() == whole


def test_both_options_are_too_many(folder):
    result = infer(folder, "--devices", "cpu:2", "--device", "cpu")
    assert result.exit_code == 2
    assert "--devices stands in place of --device" in result.stderr
