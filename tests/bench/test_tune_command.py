"""The command `tune`: where it writes, what it says, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.bench.test_tune import right_bytes
from tests.support.onnx_models import torch_vgg
from tests.support.tune_device import H200, TuneDevice
from vgg16gpu.bench.tune import search
from vgg16gpu.bench.tune.tasks import distinct, tasks
from vgg16gpu.cli import cli
from vgg16gpu.cli import tune as command
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.conv import conv_wgmma
from vgg16gpu.devices import tuned
from vgg16gpu.errors import KernelError


class FakeCuda(TuneDevice):
    """Everything is right on it, whatever runs."""

    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """The command's device, and no compiler."""
    device = FakeCuda(lambda _: device.bytes, lambda _: 1e-5)
    settle = search._settle

    def settled(device, task, built):
        device.bytes = right_bytes(task)
        return settle(device, task, built)

    monkeypatch.setattr(search, "_settle", settled)
    monkeypatch.setattr(command, "open_device", lambda name, **_: (device, name))
    monkeypatch.setattr(command, "_compile", lambda _: lambda _: None)
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    return device


@pytest.fixture
def net(tmp_path):
    return torch_vgg((64, "M", 128, 128, "M"), 16, hidden=64, classes=10).save(tmp_path / "net.onnx")


def invoke(*args):
    return CliRunner().invoke(cli, ["tune", *map(str, args)])


def test_the_command_writes_a_table_that_engines_find(fake, net, tmp_path):
    report = tmp_path / "report.json"
    result = invoke(net, "--precision", "fp16", "--batch", "2", "--top", "2", "--output", report)
    assert result.exit_code == 0, result.output
    assert fake.closed
    table = tuned.table(H200.name, tmp_path / "cache", tmp_path / "no package")
    problems = json.loads(report.read_text())["problems"]
    assert {problem["key"]: problem["chosen"] for problem in problems} == table
    assert all(problem["chosen"] == problem["today"] for problem in problems)  # all take as long
    assert len(table) == 2 + 3  # the first convolution has a pool, so that its kernel has no tiles
    facts = replace(H200, tuned=table)
    for task in distinct(tasks(Model(net).graph(), facts, ("fp16",), [(2, 3, 16, 16)])):
        choice = task.kernels.choose(task.problem, facts)
        assert {**table[task.key]} == conv_wgmma.Choice(choice.tile, choice.programmatic).entry
    made = json.loads(tuned.own_path(H200.name, tmp_path / "cache").read_text())["made"]
    assert made["device"]["name"] == H200.name
    assert "tuned" not in made["device"]
    assert "tiles: " in result.stdout


@pytest.mark.usefixtures("fake")
def test_the_command_says_what_is_wrong_and_what_is_missing(net, tmp_path, monkeypatch):
    def settled(_, task, __):
        return search.Finding(task.key, "", 1, {}, {}, wrong=[({"tile": "T"}, "off")])

    monkeypatch.setattr(search, "_settle", settled)
    result = invoke(net, "--precision", "fp16", "--batch", "1")
    assert result.exit_code == 1
    assert "WRONG, not used: conv_wgmma" in result.stderr
    assert tuned.table(H200.name, tmp_path / "cache", tmp_path / "no package") == {}
    monkeypatch.setattr(command, "search", lambda *_, **__: iter(()))
    assert "time ran out: 0 of 5 layers" in invoke(net, "--precision", "fp16", "--batch", "1").stderr


@pytest.mark.usefixtures("fake")
def test_wrong_usage():
    for words, message in {
        "--precision fp64": "'fp64' is not one of",
        "--batch 0": "not a list of positive whole numbers",
        "--size big": "'big' is not a size",
        "--seconds 0": "'--seconds'",
        "--top 0": "'--top'",
        "--output /no/such/folder/x.json": "does not exist",
        "no-such-model.onnx": "no-such-model.onnx",
        "--size 16": "input size 16 is not possible",
        "--size 224x320": "square",
    }.items():
        result = invoke(*words.split())
        assert result.exit_code == 2, words
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_devices_that_are_not_there_or_no_gpu():
    assert "cuda:99" in (result := invoke("--device", "cuda:99")).stderr
    assert result.exit_code == 2
    assert "has nothing to tune" in (result := invoke("--device", "cpu")).stderr
    assert result.exit_code == 2


@pytest.mark.usefixtures("fake")
def test_what_was_found_before_a_device_broke_is_kept(net, tmp_path, monkeypatch):
    found = [search.Finding("a problem", "", 1, {}, {}, [search.Timing({"tile": "T"}, 1e-5)])]

    def breaking(*_, **__):
        yield from found
        raise KernelError("it broke")

    monkeypatch.setattr(command, "search", breaking)
    result = invoke(net, "--precision", "fp16", "--batch", "1")
    assert result.exit_code == 1
    assert "it broke" in result.stderr
    found.clear()  # and where nothing was, the older table stays
    assert invoke(net, "--precision", "fp16", "--batch", "1").exit_code == 2
    assert tuned.table(H200.name, tmp_path / "cache", tmp_path / "no package") == {"a problem": {"tile": "T"}}
