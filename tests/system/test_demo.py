"""`make demo`: which model it takes, what it runs, and, once, the whole of it where onnxruntime is not installed."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testbench import demo, make_references
from vgg16gpu.checks.stored_references import StoredReferences
from vgg16gpu.io.imagenet import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.zoo.digits import digit_sample
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = "raise ImportError('hidden by a test')\n"


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A narrow model that stands for the VGG16, and its references."""
    folder = tmp_path_factory.mktemp("known")
    make_vgg(folder / "known.onnx", variant="vgg11", size=32, width=2, hidden=8, classes=10)
    pictures = structured_images(1, 32, 2)
    stored = make_references.ask_onnxruntime(
        folder / "known.onnx", "known", pictures, "one", (IMAGENET_MEAN, IMAGENET_STD)
    )
    stored.write(folder / "known.npz")
    return folder


@pytest.fixture
def models(known, tmp_path, monkeypatch):
    """The two places of models, both free."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "REFERENCES", known / "known.npz")
    (tmp_path / "models").mkdir()
    return demo.MODELS


@pytest.fixture
def commands(monkeypatch):
    """What the demo runs, written down in place of being run; `codes`: their exit codes."""
    ran, codes = [], {}

    def run(_, command):
        ran.append(command)
        return codes.get(command[0], 0)

    monkeypatch.setattr(demo, "run", run)
    return ran, codes


def test_the_references_are_those_of_the_model_that_it_makes():
    stored = StoredReferences.read(demo.REFERENCES)
    assert stored.model == "vgg16gpu model make --seed 0"
    assert stored.scores.shape[0] == demo.BATCH == 10
    assert [str(path) for path in demo.MODELS] == ["models/vgg16.onnx", "models/random-vgg16.onnx"]


def test_the_model_is_made_once(models, known, commands, capsys):
    ran, _ = commands
    assert demo.main() == 0
    digit = ["infer", "--model", "digits", os.path.relpath(digit_sample())]
    testbench = ["testbench", "models/vgg16.onnx", "--batch", "10"]
    assert ran == [digit, ["model", "make", "--output", "models/vgg16.onnx"], testbench]
    assert len(capsys.readouterr().out.strip().splitlines()) == 4  # a heading, and three things to try
    ran.clear()
    models[0].write_bytes((known / "known.onnx").read_bytes())
    (models[0].parent / "vgg16-imagenet.onnx").write_text("trained: not what the demo takes")
    assert demo.main() == 0
    assert ran == [digit, testbench]


def test_another_model_is_left_alone(models, known, commands):
    ran, _ = commands
    content = bytearray((known / "known.onnx").read_bytes())
    content[-2000] ^= 1
    for others in (b"trained", bytes(content)):
        models[0].write_bytes(others)
        assert demo.choose_model(models) == (models[1], False)
        assert demo.main() == 0
        assert ran[1:] == [
            ["model", "make", "--output", "models/random-vgg16.onnx"],
            ["testbench", "models/random-vgg16.onnx", "--batch", "10"],
        ]
        ran.clear()
        assert models[0].read_bytes() == others
    models[1].write_bytes((known / "known.onnx").read_bytes())
    assert demo.choose_model(models) == (models[1], True)


@pytest.mark.parametrize("name", ["infer", "model", "testbench"])
@pytest.mark.usefixtures("models")
def test_it_ends_with_the_first_command_that_fails(commands, capsys, name):
    ran, codes = commands
    codes[name] = 1
    assert demo.main() == 1
    assert ran[-1][0] == name
    assert capsys.readouterr().out == ""


def test_damaged_references_are_one_line(models, monkeypatch):
    models[0].write_text("a model")
    monkeypatch.setattr(demo, "REFERENCES", Path("none.npz"))
    message = demo.main_or_message()
    assert message.startswith("demo: stored references 'none.npz' cannot be read: ")
    assert "\n" not in message


def test_what_to_try_next_is_there():
    *_, trained, pictures, network = demo.next_steps("python").splitlines()
    assert "python -m vgg16gpu model fetch" in trained
    assert "python -m vgg16gpu infer FOLDER --output rows.csv" in pictures
    heading = re.search(r'README.md, "(.*)"', network)[1]
    assert f"\n## {heading}\n" in (ROOT / "README.md").read_text()


def test_python_is_called_as_it_lies_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert demo.shown_python() == ".venv/bin/python"
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    assert demo.shown_python() == "'/opt/my python/bin/python'"


@pytest.mark.slow(reason="makes a VGG16 of 553 MB; the parts are tested above, and testbench on digits")
@pytest.mark.timeout(900)
def test_the_whole_demo_without_onnxruntime(tmp_path):
    """The real VGG16 agrees; with one stored score flipped the same command fails."""
    (tmp_path / "models").mkdir()
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "onnxruntime.py").write_text(HIDDEN)
    environment = {**os.environ, "PYTHONPATH": f"{hidden}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    environment["VGG16GPU_CACHE"] = str(tmp_path / "cache")
    arguments = ["make", "--file", ROOT / "Makefile", "demo", "VENV=", f"PYTHON={sys.executable}"]
    (tmp_path / "testbench").symlink_to(ROOT / "testbench")  # the Makefile names scripts from here
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert "References: stored scores of onnxruntime" in text
    agreed = re.search(r"PASS: 10 of 10 inputs agree with onnxruntime's stored scores, worst error (\S+); 9 diff", text)
    assert 0 < float(agreed[1]) <= 1e-5
    assert done.stdout.index("Try next:") > done.stdout.index("PASS:")

    flipped = tmp_path / "flipped"
    flipped.mkdir()
    stored = StoredReferences.read(demo.REFERENCES)
    scores = stored.scores.copy()
    scores[4, np.abs(scores[4]).argmax()] *= -1
    replace(stored, scores=scores).write(flipped / demo.REFERENCES.name)
    script = (
        "from pathlib import Path; from vgg16gpu.checks import stored_references;"
        f"stored_references._FOLDERS = (Path({str(flipped)!r}),); from vgg16gpu.cli import cli; cli()"
    )
    again = subprocess.run(
        [sys.executable, "-c", script, "testbench", "models/vgg16.onnx", "--batch", "10"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert "FAIL: 1 of 10 inputs fail, the first is 'structured 4'" in again.stdout
