"""`infer --devices`: the rows of one device, and what each of several has done."""

import pytest
from click.testing import CliRunner

from tests.support.small_photos import small_photos
from vgg16gpu.cli import cli
from vgg16gpu.errors import DeviceError

COUNT = 16


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


def test_both_options_are_too_many(folder):
    result = infer(folder, "--devices", "cpu:2", "--device", "cpu")
    assert result.exit_code == 2
    assert "--devices stands in place of --device" in result.stderr


def test_of_shards_devices_that_have_processes_stay_names(folder, tmp_path, monkeypatch):
    def told(_, devices):
        raise DeviceError(f"these: {devices}")

    monkeypatch.setattr("vgg16gpu.cli.infer.jobs.have_processes", lambda _: True)
    monkeypatch.setattr("vgg16gpu.cli.infer.jobs.ShardWorker", told)
    result = infer(folder, "--devices", "cpu:2", "--shard", "0/1", "--output", tmp_path / "rows")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "vgg16gpu: these: ('cpu', 'cpu')")
