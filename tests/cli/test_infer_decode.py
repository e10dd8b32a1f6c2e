"""`infer --decode`: who decodes is said, recorded and refused in words; the GPU is a stand-in on the cpu device."""

import csv
import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import vgg16gpu
from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary
from vgg16gpu.cli import cli
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg
from vgg16gpu.errors import InputError
from vgg16gpu.runtime.answers import codec_choice, decoding

COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """12 photographs, one of them a PNG, one broken."""
    path = tmp_path_factory.mktemp("photographs")
    chance = np.random.default_rng(0)
    for i in range(COUNT):
        coarse = chance.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((80, 60), Image.Resampling.BICUBIC).save(path / f"{i:02}.jpg")
    Image.open(path / "03.jpg").save(path / "03.png")
    (path / "03.jpg").unlink()
    (path / "07.jpg").write_bytes((path / "07.jpg").read_bytes()[:200])
    return path


@pytest.fixture
def card(monkeypatch):
    """The cpu device decodes, by a stand-in for nvJPEG; that is what is given here."""
    library = FakeLibrary()
    monkeypatch.setattr(codec_choice, "codec_problem", lambda _: None)
    monkeypatch.setattr(codec_choice, "open_codec", lambda _: NvJpeg(library, FakeForeign()))
    return library


def infer(folder, model, *arguments):
    options = ("--model", model, "--device", "cpu", "--batch", "4", "--top", "2", "--workers", "2")
    return CliRunner().invoke(cli, [*map(str, ("infer", *options, folder, *arguments))])


def answers(path):
    return [row["score_1"] for row in csv.DictReader(path.read_text().splitlines())]


def test_the_gpu_decodes_what_it_can_and_the_report_says_what(folder, narrow, card, tmp_path):
    by_cpu = infer(folder, narrow, "--output", tmp_path / "cpu.csv", "--decode", "cpu", "--json")
    result = infer(folder, narrow, "--output", tmp_path / "gpu.csv", "--decode", "gpu", "--json")
    assert (by_cpu.exit_code, result.exit_code) == (1, 1), result.output
    told = json.loads(result.stdout)["decode"]
    assert told["by"].startswith("nvJPEG 0.0.1, ")
    assert (told["gpu"], told["cpu"], told["gpu_decoders"]) == (COUNT - 2, 1, decoding.DECODERS)
    assert json.loads(by_cpu.stdout)["decode"] == {
        "by": "cpu",
        "cpu": COUNT - 1,
        "gpu": 0,
        "gpu_images_per_s": None,
        "gpu_decoders": 0,
    }
    assert sum(card.calls) == COUNT - 2 + 1  # and the one that shows whether it works
    cpu, gpu = answers(tmp_path / "cpu.csv"), answers(tmp_path / "gpu.csv")
    assert len(cpu) == len(gpu) == COUNT
    assert [i for i in range(COUNT) if cpu[i] == gpu[i]] == [3, 7]
    assert cpu[7] == ""


def test_two_runs_are_equal_and_resume_goes_on_with_the_same_decoder_alone(folder, narrow, card, tmp_path):
    del card
    path, record = tmp_path / "a.csv", tmp_path / "a.csv.run.json"
    infer(folder, narrow, "--output", path, "--decode", "gpu")
    whole = path.read_bytes()
    assert json.loads(record.read_bytes())["run"]["options"]["decode"].startswith("nvJPEG 0.0.1, ")
    infer(folder, narrow, "--output", path, "--decode", "gpu")
    assert path.read_bytes() == whole
    path.write_bytes(whole[: len(whole) // 2])
    content = json.loads(record.read_bytes())
    record.write_text(json.dumps({**content, "finished": None, "bytes": None}))
    refused = infer(folder, narrow, "--output", path, "--resume")
    assert refused.exit_code == 2
    assert "is of another run: options: decode was 'nvJPEG 0.0.1, " in refused.stderr
    assert "and is 'cpu'" in refused.stderr
    result = infer(folder, narrow, "--output", path, "--resume", "--decode", "gpu")
    assert result.exit_code == 1, result.output
    assert path.read_bytes() == whole


def test_gpu_is_refused_in_one_line_where_it_cannot_be(folder, narrow, monkeypatch):
    monkeypatch.setattr("vgg16gpu.devices.cuda.nvjpeg.is_installed", lambda: False)
    monkeypatch.setattr("vgg16gpu.cli.infer.command.opening_ahead", lambda _: pytest.MonkeyPatch.context())
    cases = {
        ("--device", "cpu"): "decode gpu: pictures are decoded by NVIDIA GPUs alone, and the device is the CPU",
        (
            "--device",
            "cuda",
        ): "decode gpu: nvJPEG, which decodes on GPUs, is not installed: python -m pip",
        ("--device", "auto"): "is not installed: python -m pip install nvidia-nvjpeg",
        ("--model", "digits"): "decode gpu: GPUs decode to RGB, and the network takes inputs of shape (1, ",
    }
    for options, words in cases.items():
        result = infer(folder, narrow, "--decode", "gpu", *options)
        assert (result.exit_code, result.stdout) == (2, ""), options
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("options", "wanted"), [((), None), (("--decode", "gpu"), "16")])
@pytest.mark.parametrize("own", [None, "8"])
def test_a_driver_keeps_streams_apart_where_it_decodes(folder, narrow, monkeypatch, options, wanted, own):
    """Before it starts; a number of the user's stays."""
    name, seen = "CUDA_DEVICE_MAX_CONNECTIONS", []
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)

    def starts(_):
        seen.append(os.environ.get(name))
        return pytest.MonkeyPatch.context()

    monkeypatch.setattr("vgg16gpu.cli.infer.command.opening_ahead", starts)
    infer(folder, narrow, "--device", "cpu", *options)
    assert seen == [own or wanted]
    monkeypatch.delenv(name, raising=False)


def test_classify_takes_it_too(folder, narrow, card):
    del card
    by_cpu = list(vgg16gpu.classify(folder, narrow, device="cpu"))
    by_gpu = list(vgg16gpu.classify(folder, narrow, device="cpu", decode="gpu"))
    assert [answer.name for answer in by_gpu] == [answer.name for answer in by_cpu]
    different = [not np.array_equal(a.scores, b.scores, equal_nan=True) for a, b in zip(by_cpu, by_gpu, strict=True)]
    assert [i for i, is_different in enumerate(different) if not is_different] == [3, 7]
    with pytest.raises(InputError, match="decode 'tpu' is not one of auto, cpu, gpu"):
        next(vgg16gpu.classify(folder, narrow, device="cpu", decode="tpu"))
