"""measure/decode_gpu.py: every part measures, on the cpu device by a stand-in; a part that fails leaves the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.measure import decode_gpu, decode_photos
from tests.support.fake_nvjpeg import SHIFT, FakeForeign, FakeLibrary
from vgg16gpu.cli import cli
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.devices.cuda import nvjpeg
from vgg16gpu.runtime.answers import codec_choice
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """The cpu device is a card that decodes, and everything is small."""
    found = FakeLibrary()
    monkeypatch.setattr(CpuDevice, "foreign", FakeForeign())
    monkeypatch.setattr(codec_choice, "codec_problem", lambda _: None)
    for place in (nvjpeg, decode_gpu):
        monkeypatch.setattr(place, "load_nvjpeg", lambda: found)
    monkeypatch.setattr(decode_gpu, "run", lambda *words: CliRunner().invoke(cli, words).stdout)
    monkeypatch.setattr(decode_photos, "SIZE", (50, 36))
    monkeypatch.setattr(decode_photos, "LEAST", 32)
    monkeypatch.setattr(decode_photos, "usable_cores", lambda: 1)
    monkeypatch.setattr(decode_photos, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(decode_gpu, "CALLS", ((4, 2),))
    monkeypatch.setattr(decode_gpu, "SWITCHING", (2e-5, 1e-3))
    monkeypatch.setattr(decode_gpu, "SETTINGS", ((8, 2, None),))
    return found


class InThisProcess:
    """A pool of no processes."""

    def __init__(self, _: int) -> None:
        self.map = map

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=32, width=8, hidden=32, classes=20)
    return path


def measured(model: Path, output: Path, *options: str) -> tuple[int, Any]:
    words = [str(model), "--device", "cpu", "--count", "40", "--compared", "30", "--output", str(output), *options]
    return decode_gpu.main(words), json.loads(output.read_text())


@pytest.mark.usefixtures("library")
def test_every_part_measures(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((200, 150), Image.Resampling.BICUBIC).save(photographs / "a.png")
    Image.new("RGB", (200, 150)).save(photographs / "chart.png")  # no photograph
    code, content = measured(model, tmp_path / "record.json", "--photographs", str(photographs))
    assert (code, content["failures"]) == (0, {})
    assert content["pictures"]["crops_of"] == ["a.png"]
    assert content["environment"]["decoder"].startswith("nvJPEG 0.0.1, hardware")
    assert content["infer"]["equal_rows_of_two_runs"] == {"gpu": True, "cpu": True}
    assert [told["decode"]["gpu"] for told in content["infer"]["gpu"]] == [40, 40]
    pixels = content["pixels"]["hardware"]
    assert {kind: found["pictures"] for kind, found in pixels.items() if kind != "refused"} == {
        "4:2:0": 24,
        "4:2:2": 3,
        "4:4:4": 3,
    }
    assert SHIFT - 1 <= pixels["4:2:0"]["mean"] <= SHIFT + 1
    assert content["scores"]["fp32: gpu against cpu"]["max_relative"] > 0
    assert [len(cases) for cases in content["settings"].values()] == [2, 1]
    assert all(case["images_per_s"] > 0 for cases in content["settings"].values() for case in cases)
    assert {case["way"] for case in content["alone"]} == {"hardware", "CUDA"}
    assert all(case["images_per_s"] > 0 for case in content["alone"])
    told = capsys.readouterr().out
    assert "infer --decode gpu: " in told
    assert "failed: nothing" in told


def test_pictures_that_come_all_at_once_have_a_rate(model: Path, tmp_path: Path) -> None:
    Image.new("RGB", decode_photos.SIZE).save(tmp_path / "a.jpg")
    where = decode_gpu.Where("cpu", model, tmp_path, 1, 1, float("inf"))
    with decode_gpu._opened(where) as device, decode_gpu._engine(where, device) as engine:
        assert decode_gpu._rate(engine, where) > 0


def test_a_part_that_fails_leaves_the_others(
    model: Path, tmp_path: Path, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.works = ("hardware",)
    monkeypatch.setitem(decode_gpu.PARTS, "infer", lambda _: 1 / 0)
    code, content = measured(model, tmp_path / "record.json")
    assert code == 1
    assert list(content["failures"]) == ["infer"]
    assert content["pictures"]["crops_of"]
    assert "error" in content["pixels"]["CUDA"]
    assert [case for case in content["alone"] if "images_per_s" in case]
    code, content = measured(model, tmp_path / "record.json", "--budget", "0")
    assert code == 1
    assert {"alone", "settings", "scores", "pixels"} <= set(content["failures"])
    assert "TimeoutError" in content["failures"]["pixels"]
