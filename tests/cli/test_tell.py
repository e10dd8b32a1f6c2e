"""cli/common/tell.py: what the package logs, on the screen."""

import re

import pytest
from click.testing import CliRunner
from PIL import Image

from vgg16gpu import devices
from vgg16gpu.cli import cli
from vgg16gpu.devices.cuda import probe as cuda_probe
from vgg16gpu.errors import DeviceError
from vgg16gpu.zoo.digits import digit_sample

DIGITS = ("infer", digit_sample(), "--model", "digits")


def invoke(*arguments):
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def broken_gpu(monkeypatch):
    """A machine whose GPU cannot be used."""

    def fail():
        raise DeviceError("PyCUDA is not installed (a remedy)")

    driver = cuda_probe.Driver((13, 0), "libcuda.so.1", ("a card",))
    monkeypatch.setattr(devices, "_open_working_cuda", fail)
    monkeypatch.setattr(cuda_probe, "probe_driver", lambda: driver)


@pytest.mark.usefixtures("broken_gpu")
def test_falling_back_is_told_once():
    result = invoke(*DIGITS)
    assert result.stderr.startswith("vgg16gpu: there is a GPU, and the CPU is used: PyCUDA is not installed (a remedy)")
    assert result.stderr.count("\n") == 1
    assert "Device: cpu, for the reason above; precision fp32" in result.stdout
    assert "PyCUDA" not in result.stdout
    asked = invoke(*DIGITS, "--device", "cpu")
    assert asked.stderr == ""
    assert "Device: cpu: as asked" in asked.stdout


def test_verbosity():
    assert invoke(*DIGITS, "--device", "cpu").stderr == ""
    told = invoke("-v", *DIGITS, "--device", "cpu").stderr.splitlines()
    assert all(line.startswith("vgg16gpu: ") for line in told)
    built = r".*digits\.onnx: batch 1, fp32, built in [\d.]+ s on cpu: as asked"
    assert len([line for line in told if re.fullmatch(built, line)]) == 1
    assert [line for line in told if re.fullmatch(r"vgg16gpu: start: first run [\d.]+ ms", line)]
    assert "taken from the kernel cache: " not in "".join(told)
    assert "taken from the kernel cache: " in invoke("-vv", *DIGITS, "--device", "cpu").stderr


def test_files_that_are_skipped_are_told(tmp_path):
    Image.open(digit_sample()).save(tmp_path / "a.png")
    for name in ("t.xml", "notes.md", ".hidden", "._a.png"):
        (tmp_path / name).write_text("")
    result = invoke("infer", tmp_path, "--model", "digits", "--device", "cpu")
    assert result.stderr == "vgg16gpu: 4 files left out: 2 hidden, 2 no pictures (notes.md, t.xml)\n"
