"""Which kernels compute float32 on a card without wgmma: measured, kept in its table, taken again by --resume."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.onnx_models import torch_vgg
from tests.support.tune_device import H200, TuneDevice
from vgg16gpu.bench.tune import float32
from vgg16gpu.bench.tune.float32 import Float32Finding, measure_float32
from vgg16gpu.cli import cli
from vgg16gpu.cli import tune as command
from vgg16gpu.cli.infer import writing
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.mma_pairs import pays
from vgg16gpu.compiler.op_kernels.wgmma import has_float32_choice
from vgg16gpu.devices import tuned
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.zoo.digits import heldout

GEFORCE = replace(H200, name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), tensor_maps=False)
TURING = replace(GEFORCE, name="Tesla T4", compute_capability=(7, 5))


class Closed(TuneDevice):
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Closed:
    """Return a GeForce, which VGG16 is faster on by pairs, against the prediction."""
    device = Closed(lambda _: None, lambda _: 0.0)
    device.facts = GEFORCE
    finding = Float32Finding({"mma": 0.0021, "ffma": 0.0059})
    monkeypatch.setattr(command, "open_device", lambda name, **_: (device, name))
    monkeypatch.setattr(command, "random_vgg16", lambda: None)
    monkeypatch.setattr(command, "measure_float32", lambda *_: finding)
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    return device


def facts_by_table(facts: DeviceFacts, cache: Path) -> DeviceFacts:
    """Return what a card's facts are with its table in the cache, as `read_facts` makes them."""
    kin = tuned.Kin(facts.compute_capability, facts.multiprocessors)
    return replace(facts, float32_kernels=tuned.float32_kernels(tuned.table(facts.name, cache, kin=kin)))


def test_a_card_takes_what_was_measured_on_it(card: Closed, tmp_path: Path) -> None:
    report, cache = tmp_path / "report.json", tmp_path / "cache"
    assert not pays(facts_by_table(GEFORCE, cache))  # the prediction
    result = CliRunner().invoke(cli, ["tune", "--output", str(report)])
    assert result.exit_code == 0, result.output
    assert card.closed
    assert "VGG16 in fp32, batch 8: mma 2.10 ms, ffma 5.90 ms" in result.stdout
    assert json.loads(report.read_text())["float32"] == {"kernels": "mma", "mma_us": 2100, "ffma_us": 5900}
    assert pays(facts_by_table(GEFORCE, cache))
    assert not pays(facts_by_table(replace(GEFORCE, name="NVIDIA GeForce RTX 4080"), cache))  # another card


def test_a_measurement_is_of_one_card_alone(tmp_path: Path) -> None:
    """A card without a table takes the nearest one's tiles, not what that is fastest with in float32."""
    entries = {tuned.FLOAT32: {"kernels": "mma"}, "layer": {"tile": 1}}
    made = {"device": {"compute_capability": [8, 9], "multiprocessors": 76}}
    tuned.write(tmp_path / "other.json", "NVIDIA GeForce RTX 4080", entries, made)
    found = tuned.table(GEFORCE.name, tmp_path / "no cache", tmp_path, tuned.Kin((8, 9), 128))
    assert found == {"layer": {"tile": 1}}


def test_the_environment_goes_before_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = {tuned.FLOAT32: {"kernels": "mma"}}
    monkeypatch.setenv(tuned.ENVIRONMENT, "ffma")
    assert tuned.float32_kernels(tiles) == "ffma"
    monkeypatch.setenv(tuned.ENVIRONMENT, "tf32")
    with pytest.raises(DeviceError, match="VGG16GPU_FLOAT32 is 'tf32'; accepted: mma, ffma"):
        tuned.float32_kernels(tiles)
    monkeypatch.delenv(tuned.ENVIRONMENT)
    assert tuned.float32_kernels(tiles) == "mma"
    assert tuned.float32_kernels({tuned.FLOAT32: {"kernels": "tf32"}}) is None


@pytest.mark.gpu
def test_a_gpu_takes_the_environment_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from vgg16gpu.devices import open_device

    monkeypatch.setenv(tuned.ENVIRONMENT, "ffma")
    opened = open_device("cuda")
    opened.device.close()
    assert opened.device.facts.float32_kernels == "ffma"


def test_cards_with_wgmma_or_without_pairs_have_no_choice(card: Closed) -> None:
    assert has_float32_choice(GEFORCE)
    assert not any(has_float32_choice(facts) for facts in (H200, TURING, replace(GEFORCE, kind="cpu")))
    card.facts = TURING
    result = CliRunner().invoke(cli, ["tune"])
    assert result.exit_code == 2
    assert "Tesla T4 has nothing to tune; compute capability 8.0 and newer has" in result.stderr
    assert card.closed


def test_both_kernels_compute_the_network(device: Device, tmp_path: Path) -> None:
    net = torch_vgg((64, "M", 64, "M"), 16, hidden=64, classes=10).save(tmp_path / "net.onnx")
    found = measure_float32(device.facts.kind, Model(net), side=16)
    assert set(found.seconds) == {"mma", "ffma"}
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_the_weights_are_those_of_vgg16() -> None:
    graph = float32.random_vgg16().graph()
    assert (graph.input.shape[1], len(graph.ops)) == (3, 13 + 3)  # pools and ReLU are part of these


def test_resume_computes_as_the_run_that_it_goes_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Although `tune` has found something else since: the rows would have other bits."""
    for number, image in enumerate(heldout()[0][:4]):
        Image.fromarray(image[:, :, 0]).save(tmp_path / f"{number}.png")
    monkeypatch.setattr(writing, "has_float32_choice", lambda _: True)
    monkeypatch.setattr(writing, "pays", lambda _: os.environ.get(tuned.ENVIRONMENT, "ffma") == "mma")  # as of facts
    monkeypatch.setenv(tuned.ENVIRONMENT, "mma")
    path = tmp_path / "rows.csv"
    words = ["infer", "--model", "digits", "--device", "cpu", "--output", str(path), str(tmp_path)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    record = json.loads((tmp_path / "rows.csv.run.json").read_text())
    assert record["run"]["options"]["float32"] == "mma"
    monkeypatch.delenv(tuned.ENVIRONMENT)
    result = CliRunner().invoke(cli, [*words, "--resume"])
    assert result.exit_code == 0, result.output
    monkeypatch.setenv(tuned.ENVIRONMENT, "ffma")  # the user's own word: then it is another run
    result = CliRunner().invoke(cli, [*words, "--resume"])
    assert result.exit_code == 2
    assert "float32 was 'mma' and is 'ffma'" in result.stderr
