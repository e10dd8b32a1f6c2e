"""examples/: short, and each does what it says, from any folder, on the CPU."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.torch_here import torch_module
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.zoo.digits import digit_sample
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example from a folder of its own, in this process, and return what it prints: nothing on stderr."""
    monkeypatch.chdir(tmp_path)

    def call(name, *arguments):
        path = str(ROOT / "examples" / name)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        runpy.run_path(path, run_name="__main__")
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return call


def share(text):
    """The last percentage of a text."""
    return float(re.findall(r"([\d.]+)%", text)[-1])


def test_every_example_is_short_and_run_by_a_test():
    names = ["basicsr_perceptual", "classify", "features", "int8", "own_kernel", "perceptual_loss", "plain_vgg16"]
    names += ["stream", "style_transfer"]
    assert [path.stem for path in EXAMPLES] == names
    for path in EXAMPLES:
        text = path.read_text()
        assert len(text.splitlines()) < 40 or path.stem == "plain_vgg16", path  # its test: tests/kernels/plain
        assert f"python examples/{path.name}" in text


def test_classify(run):
    name, *lines = run("classify.py").splitlines()
    assert name.strip() == str(digit_sample())
    assert re.fullmatch(r" 9\d\.\d\d%  2", lines[0])
    assert len(lines) == 5


def test_classify_a_photo_with_a_model_of_ones_own(run, tmp_path):
    make_vgg(tmp_path / "vgg.onnx", variant="vgg11", size=32, width=8, hidden=32, classes=1000)
    _, *lines = run("classify.py", "vgg.onnx", digit_sample()).splitlines()
    assert len(lines) == 5
    assert not any("class " in line for line in lines)  # ImageNet's names
    _, *others = run("classify.py", "vgg.onnx", digit_sample(), "--preprocess", "unit").splitlines()
    assert others != lines


def test_features(run):
    text = run("features.py")
    assert text.startswith("picture 0, a 2, is most like picture ")
    assert share(text) >= 95


def test_stream(run):
    found = re.fullmatch(r"([\d.]+)% of 100 digits are right, [\d,]+ pictures a second\n", run("stream.py"))
    assert found
    assert float(found[1]) >= 98


@pytest.mark.slow(reason="cli/test_calibrate.py has the command")
def test_int8(run):
    *steps, exact, rounded = run("int8.py").splitlines()
    assert len(steps) == 8  # what the six convolutions and two matrices read
    assert all(re.fullmatch(r"\S+: at most [\d.]+, in steps of [\d.]+", step) for step in steps)
    assert (exact[:4], rounded[:4]) == ("fp32", "int8")
    assert min(share(exact), share(rounded)) >= 97


@pytest.mark.slow(reason="tests/lab/test_lab_cli.py runs kernels of one's own")
def test_own_kernel(tmp_path):
    """Run it as a process: its output comes from a process that it starts."""
    command = [sys.executable, str(ROOT / "examples" / "own_kernel.py"), "own"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (row,) = [line for line in told.splitlines() if "│ mine " in line]
    assert "WRONG" not in row
    assert (tmp_path / "own" / "results" / "comparison.csv").is_file()
    assert {path.name for path in (tmp_path / "own").glob("*mine*")} == {"mine.cu", "mine.py", "test_mine.py"}


def losses_of(text):
    return [float(number) for number in re.findall(r"^step \d+: loss (\S+)$", text, re.MULTILINE)]


def narrow_vgg_and_pictures(folder, variant="vgg16"):
    make_vgg(folder / "vgg.onnx", variant=variant, size=32, width=8, hidden=32, classes=10)
    for name, pixels in zip(("one.png", "other.png"), structured_images(2, 40, seed=3), strict=True):
        Image.fromarray(pixels).save(folder / name)


def test_style_transfer(run, tmp_path):
    narrow_vgg_and_pictures(tmp_path)
    first, last = losses_of(run("style_transfer.py", "vgg.onnx", "one.png", "other.png", "out.png", 20))
    assert last < 0.7 * first
    content, painted = (np.asarray(Image.open(tmp_path / name)).astype(float) for name in ("one.png", "out.png"))
    assert painted.shape == content.shape
    assert abs(painted - content).mean() > 1


def test_basicsr_perceptual(run, tmp_path):
    """What it computes: tests/pytorch/test_basicsr_example.py."""
    torch_module()
    narrow_vgg_and_pictures(tmp_path, "vgg19")
    told = run("basicsr_perceptual.py", "vgg.onnx", "one.png", "other.png")
    percep, style, norm = map(float, re.findall(r" ([\d.e+-]+)(?:,|$)", told, re.MULTILINE))
    assert min(percep, style, norm) > 0


def test_perceptual_loss(run, tmp_path):
    torch_module()
    narrow_vgg_and_pictures(tmp_path)
    first, last = losses_of(run("perceptual_loss.py", "vgg.onnx", "one.png", "out.png", 20))
    assert last < 0.7 * first
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (40, 40)
